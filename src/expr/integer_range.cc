#include <fmt/format.h>

#include <utility>

#include "expr/ranges.h"
#include "heddle/error.h"
#include "heddle/expr.h"

namespace heddle {

std::pair<std::int32_t, std::int32_t> integer_range(const Expr& e) {
  if (e.type() != ExprType::i32) {
    throw Error(ErrorCode::invalid_argument, fmt::format("e is of type {}; i32 is accepted", name(e.type())));
  }
  constexpr double kMostRows = 1 << 30;  // so that a position plus a number does not wrap
  expr::LeafRanges leaves;
  leaves.range.fill({0, kMostRows});
  leaves[expr::Leaf::score] = expr::Range::any(ExprType::f32);
  const expr::Range range = expr::RangeAnalysis(e, expr::Precision::f32, nullptr)(leaves);
  return {static_cast<std::int32_t>(range.lo), static_cast<std::int32_t>(range.hi)};
}

}  // namespace heddle
