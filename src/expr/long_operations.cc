#include "expr/long_operations.h"

#include <bit>

namespace heddle::expr {

int power_of_two(const Node& node) {
  if (node.op != Op::constant || node.type != ExprType::i32 || node.i32() <= 0) return -1;
  const auto value = static_cast<std::uint32_t>(node.i32());
  return std::has_single_bit(value) ? std::countr_zero(value) : -1;
}

bool is_long(const Node& node) {
  const Kind kind = info(node.op).kind;
  if (kind == Kind::read || kind == Kind::random) return true;
  if (node.op == Op::floor_div || node.op == Op::mod) return power_of_two(*node.operands[1]) < 0;
  const bool rounds = node.op == Op::floor || node.op == Op::ceil || node.op == Op::round || node.op == Op::trunc;
  return kind == Kind::real && !rounds;
}

}  // namespace heddle::expr
