// Range analysis: which values an expression can take when its leaves lie in given intervals. It proves capture indices
// inside their tensors and classifies blocks of a mask, so it must never claim too little: every value the interpreter
// can give lies in the range.
//
// Integers are analysed by meaning: sums, differences and multiples of integer terms are collected into one linear form
// before intervals are taken, so that `2*q_idx - kv_idx >= q_idx` is as sharp as `q_idx >= kv_idx`, and a term that
// cancels leaves no width. A value is known through its form whenever the form's exact value fits i32, whatever wrapped
// on the way.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "expr/interpret.h"

namespace heddle::expr {

/// The values from lo to hi, and NaN when nan. Integers and f32 are exact in double; a boolean is 0 or 1. When NaN is
/// the only value, lo is +inf and hi is -inf.
struct Range {
  double lo = 0;
  double hi = 0;
  bool nan = false;

  static Range point(double x) { return {x, x, false}; }
  static Range boolean(bool can_be_false, bool can_be_true) {
    return {can_be_false ? 0.0 : 1.0, can_be_true ? 1.0 : 0.0, false};
  }
  static Range any(ExprType type);
  bool contains(double x) const { return x != x ? nan : lo <= x && x <= hi; }
  bool is_point() const { return lo == hi && !nan; }
  bool always_true() const { return lo == 1; }
  bool always_false() const { return hi == 0; }
  bool operator==(const Range&) const = default;
};

/// Bounds of captures' elements: whole-tensor bounds, or a zone map (mask/zone_map.h) that knows sub-ranges.
class CaptureBounds {
 public:
  virtual ~CaptureBounds() = default;
  /// Bounds of the elements whose index along each axis lies in `indices` (already clamped into the tensor).
  virtual Range bounds(const CaptureDecl& capture, std::span<const Range> indices) const = 0;
  /// The tensor's shape.
  virtual const Dims& shape(const CaptureDecl& capture) const = 0;
};

/// Captures of which nothing is known but their shapes. The bindings must outlive it.
class ShapesOnly final : public CaptureBounds {
 public:
  explicit ShapesOnly(const Bindings& bindings) : bindings_(bindings) {}
  Range bounds(const CaptureDecl& capture, std::span<const Range>) const override {
    return Range::any(read_type(capture.dtype));
  }
  const Dims& shape(const CaptureDecl& capture) const override { return bindings_.captures.at(capture.name).shape; }

 private:
  const Bindings& bindings_;
};

/// Intervals of the leaves. score starts as any f32.
struct LeafRanges {
  std::array<Range, kLeafCount> range;
  Range& operator[](Leaf leaf) { return range[static_cast<std::size_t>(leaf)]; }
  const Range& operator[](Leaf leaf) const { return range[static_cast<std::size_t>(leaf)]; }
};

/// An expression prepared for many range queries. A param that has not been bound (bind_params) can be anything.
class RangeAnalysis {
 public:
  /// `bounds` may be null: captures then have the range of their type. It must outlive the analysis.
  RangeAnalysis(const Expr& root, Precision precision, const CaptureBounds* bounds);
  ~RangeAnalysis();
  RangeAnalysis(RangeAnalysis&&) noexcept;

  /// `scratch` is the caller's, so that threads share one analysis.
  Range operator()(const LeafRanges& leaves, std::vector<Range>& scratch) const;
  Range operator()(const LeafRanges& leaves) const;

 private:
  struct Program;
  std::unique_ptr<const Program> program_;
};

/// Throws invalid_argument, naming the read and the axis, for a read (not `at`) whose index can leave the tensor where
/// the read counts. What counts:
/// - where(c, x, y): x where c is true, y where it is false, c everywhere.
/// - a and b: a where b is true, b where a is true. a or b: a where b is false, b where a is false. The reads of one
///   term may rest on the comparisons of the other, but not both on each other. Nested terms guard alike.
/// - of all other operations: each operand where the result counts.
/// A condition bounds the linear forms that it compares (`not`, `and` and `or` taken apart). An integer where in an
/// index has the values of x restricted by c, and of y restricted by not c.
///
/// Elsewhere a read may leave the tensor: every backend clamps it, and what it gives is not used. `bounds` are asked
/// only for captures that a read's index, or a condition that guards a read, depends on, and only if the proof needs
/// them.
void check_reads_inside(const Expr& root, const LeafRanges& leaves, const CaptureBounds& bounds, Precision precision);
/// Whether check_reads_inside accepts the expression for all values of the captures and of the params that are not
/// bound. Only the shapes of `bindings` are looked at.
bool reads_stay_inside(const Expr& root, const LeafRanges& leaves, const Bindings& bindings, Precision precision);

}  // namespace heddle::expr
