// The rewrite rules of simplify(), as a table. Each holds for all inputs: NaN, infinities, negative zeros and wrapping
// integers included.
#pragma once

#include <span>
#include <string_view>

#include "expr/interpret.h"

namespace heddle::expr {

struct Rule {
  Op op;                  // of the nodes it looks at
  std::string_view says;  // left side = right side
  /// The right side, or an empty expression where the left side does not match.
  Expr (*apply)(const Node& node, Precision precision);
  /// Makes nodes that the left side need not have had: where other users keep the left side alive, the whole grows.
  bool may_grow = false;
};

/// All rules for an operation, in the order in which they are tried.
std::span<const Rule> rules_of(Op op);

/// Parts of the table: for and, or, ^, not and where; for & | ^ ~ << >> on i32.
std::span<const Rule> rules_of_logic();
std::span<const Rule> rules_of_bits();

/// A constant as a value of the precision.
Value constant_value(const Node& constant, Precision precision);

}  // namespace heddle::expr
