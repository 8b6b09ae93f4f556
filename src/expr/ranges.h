// Range analysis: which values an expression can take when its leaves lie in given intervals. It proves capture indices
// inside their tensors and classifies blocks of a mask, so it must never claim too little: every value the interpreter
// can give lies in the range.
//
// Integers are analysed by meaning: sums, differences and multiples of integer terms are collected into one linear form
// before intervals are taken, so that `2*q_idx - kv_idx >= q_idx` is as sharp as `q_idx >= kv_idx`, and a term that
// cancels leaves no width. A value is known through its form whenever the form's exact value fits i32, whatever wrapped
// on the way.
#pragma once

#include <memory>
#include <vector>

#include "expr/interpret.h"
#include "expr/range.h"

namespace heddle::expr {

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
