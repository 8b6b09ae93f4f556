// Linear collection of integer arithmetic, exact modulo 2^32: 2*q_idx - kv_idx - q_idx becomes q_idx - kv_idx.
#pragma once

#include <optional>

#include "expr/node.h"

namespace heddle::expr {

/// An i32 sum, difference, multiple or negative, or an equality of i32, with its terms collected. Empty when that would
/// take more nodes, or there is nothing linear about it.
std::optional<Expr> collect_linear(const Node& node);

}  // namespace heddle::expr
