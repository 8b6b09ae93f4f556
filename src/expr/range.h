// An interval of values, and what range analysis is given: the intervals of leaves and of captures' elements.
#pragma once

#include <algorithm>
#include <array>
#include <span>

#include "expr/node.h"
#include "heddle/attention.h"

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

/// The smallest range that holds both.
inline Range hull(const Range& x, const Range& y) {
  return {std::min(x.lo, y.lo), std::max(x.hi, y.hi), x.nan || y.nan};
}

}  // namespace heddle::expr
