// Rewrite rules of the bit operations on i32. By literals they become arithmetic, of which ranges, tiles and kernels
// know more.
#include <limits>

#include "expr/rule_parts.h"
#include "expr/rules.h"

namespace heddle::expr {
namespace {

constexpr std::int32_t kIntMax = std::numeric_limits<std::int32_t>::max();

Expr bit_and_edges(const Node& x, Precision) {
  if (same_operands(x) || is_i32(second(x), -1)) return handle(x, 0);
  return is_i32(second(x), 0) ? Expr(0) : Expr();
}
/// A mask of all ones of the largest power: 2^31 is no i32.
Expr low_bits(const Node& x, Precision) {
  if (!is_constant(second(x))) return {};
  const std::int32_t mask = second(x).i32();
  const bool low = mask > 0 && mask < kIntMax && (mask & (mask + 1)) == 0;
  return low ? node(Op::mod, handle(x, 0), Expr(mask + 1)) : Expr();
}
Expr bit_or_edges(const Node& x, Precision) {
  if (same_operands(x) || is_i32(second(x), 0)) return handle(x, 0);
  return is_i32(second(x), -1) ? Expr(-1) : Expr();
}
Expr bit_xor_edges(const Node& x, Precision) {
  if (same_operands(x)) return Expr(0);
  if (is_i32(second(x), 0)) return handle(x, 0);
  return is_i32(second(x), -1) ? node(Op::bit_not, handle(x, 0)) : Expr();
}
Expr twice_bit_not(const Node& x, Precision) { return first(x).op == Op::bit_not ? handle(first(x), 0) : Expr(); }
Expr as_difference(const Node& x, Precision) { return node(Op::sub, Expr(-1), handle(x, 0)); }
Expr as_product(const Node& x, Precision) {
  if (!is_constant(second(x))) return {};
  const std::int32_t count = second(x).i32();
  if (count < 0 || count > 31) return Expr(0);
  return node(Op::mul, handle(x, 0), Expr(static_cast<std::int32_t>(1U << static_cast<std::uint32_t>(count))));
}
/// By 2^31, which is no i32, it stays a shift.
Expr as_quotient(const Node& x, Precision) {
  if (!is_constant(second(x))) return {};
  const std::int32_t count = second(x).i32();
  if (count == 0) return handle(x, 0);
  if (count > 0 && count < 31) return node(Op::floor_div, handle(x, 0), Expr(1 << count));
  return count == 31 ? Expr() : node(Op::shift_right, handle(x, 0), Expr(31));
}

constexpr Rule kRules[] = {
    {Op::bit_and, "x & x = x; x & 0 = 0; x & -1 = x", bit_and_edges},
    {Op::bit_and, "x & (2**n - 1) = x % 2**n", low_bits, kMayGrow},
    {Op::bit_or, "x | x = x; x | 0 = x; x | -1 = -1", bit_or_edges},
    {Op::bit_xor, "x ^ x = 0; x ^ 0 = x; x ^ -1 = ~x", bit_xor_edges},
    {Op::bit_not, "~~x = x", twice_bit_not},
    {Op::bit_not, "~x = -1 - x", as_difference, kMayGrow},
    {Op::shift_left, "x << n = x * 2**n", as_product, kMayGrow},
    {Op::shift_right, "x >> n = x // 2**n; x >> 0 = x", as_quotient, kMayGrow},
};

}  // namespace

std::span<const Rule> rules_of_bits() { return kRules; }

}  // namespace heddle::expr
