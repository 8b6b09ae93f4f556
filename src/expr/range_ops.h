// Interval arithmetic: what each operation makes of the ranges of its operands. Every value that any backend may
// compute lies in the result.
#pragma once

#include <span>

#include "expr/interpret.h"
#include "expr/range.h"

namespace heddle::expr {

struct RangeOperands {
  std::span<const Range> range;
  ExprType type;          // of the first operand
  bool same = false;      // the first two are one node
  bool opposite = false;  // booleans: one of the two is the other's negation
  const Range& operator[](std::size_t i) const { return range[i]; }
};

/// The range of `op` on values, as apply() in interpret.h; not for constants, leaves, params and reads.
Range op_range(Op op, const RangeOperands& operands, Precision precision);

}  // namespace heddle::expr
