#include "expr/rules.h"

#include <array>
#include <cmath>
#include <limits>
#include <optional>
#include <vector>

#include "expr/collect.h"
#include "expr/comparisons.h"
#include "expr/order.h"

namespace heddle::expr {
namespace {

// Reading nodes.

const Node& first(const Node& node) { return *node.operands[0]; }
const Node& second(const Node& node) { return *node.operands[1]; }
Expr handle(const Node& node, std::size_t operand) { return Expr(node.operands[operand]); }
bool is_i32(const Node& node) { return node.type == ExprType::i32; }
bool same_operands(const Node& node) { return node.operands[0] == node.operands[1]; }
bool is_constant(const Node& node) { return node.op == Op::constant; }

bool is_i32(const Node& node, std::int32_t value) {
  return is_constant(node) && node.type == ExprType::i32 && node.i32() == value;
}
bool is_boolean(const Node& node, bool value) {
  return is_constant(node) && node.type == ExprType::boolean && node.boolean() == value;
}
std::optional<double> real(const Node& node, Precision precision) {
  if (!is_constant(node) || node.type != ExprType::f32) return {};
  return std::get<double>(constant_value(node, precision));
}
/// Equal to `value`, zeros by sign.
bool is_real(const Node& node, double value, Precision precision) {
  const std::optional<double> x = real(node, precision);
  return x && *x == value && std::signbit(*x) == std::signbit(value);
}

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr std::int32_t kIntMin = std::numeric_limits<std::int32_t>::min();
constexpr std::int32_t kIntMax = std::numeric_limits<std::int32_t>::max();

// Making nodes from operands that fit.

Expr node(Op op, const Expr& x) { return make(op, x.type(), std::array{x}); }
Expr node(Op op, const Expr& x, const Expr& y) { return make(op, x.type(), std::array{x, y}); }

/// Tells whether a value can be a negative zero, looking a few operations deep.
bool may_be_negative_zero(const Node& x, int depth = 6) {
  if (depth == 0) return true;
  switch (x.op) {
    case Op::constant:
      return x.f32() == 0 && std::signbit(x.f32());
    case Op::to_f32:
    case Op::exp:
    case Op::exp2:
    case Op::sigmoid:
    case Op::abs:
    case Op::random_uniform:
      return false;
    case Op::add:  // negative zero only from two of them
      return may_be_negative_zero(first(x), depth - 1) && may_be_negative_zero(second(x), depth - 1);
    case Op::sub:
      return may_be_negative_zero(first(x), depth - 1);
    case Op::mul:
      return !same_operands(x);
    case Op::where:
      return may_be_negative_zero(second(x), depth - 1) || may_be_negative_zero(*x.operands[2], depth - 1);
    default:
      return true;
  }
}

// Any operation.

/// The operands of a commutative operation in their order; a comparison turns around.
Expr in_order(const Node& x) {
  if (!stands_before(second(x), first(x))) return {};
  return node(is_comparison(x.op) ? mirrored(x.op) : x.op, handle(x, 1), handle(x, 0));
}

bool is_collectable(const Node& x) {
  switch (x.op) {
    case Op::add:
    case Op::sub:
    case Op::mul:
    case Op::neg:
    case Op::eq:
    case Op::ne:
      return first(x).type == ExprType::i32;
    default:
      return false;
  }
}

/// Collected terms have an order of their own.
Expr collected(const Node& x, Precision) {
  if (!is_collectable(x)) return {};
  const std::optional<Expr> result = collect_linear(x);
  if (result) return result->node() == &x ? Expr() : *result;
  return x.op == Op::sub || x.op == Op::neg ? Expr() : in_order(x);
}

Expr ordered(const Node& x, Precision) {
  // Of two zeros, min and max may return either one, but not another than before.
  const bool real_extreme = (x.op == Op::min || x.op == Op::max) && x.type == ExprType::f32;
  return real_extreme || is_collectable(x) ? Expr() : in_order(x);
}

// Real arithmetic.

Expr add_zero(const Node& x, Precision precision) {
  if (is_real(second(x), -0.0, precision)) return handle(x, 0);
  if (is_real(second(x), 0.0, precision) && !may_be_negative_zero(first(x))) return handle(x, 0);
  return {};
}
Expr add_negative(const Node& x, Precision) {
  if (is_i32(x)) return {};
  if (second(x).op == Op::neg) return node(Op::sub, handle(x, 0), handle(second(x), 0));
  if (first(x).op == Op::neg) return node(Op::sub, handle(x, 1), handle(first(x), 0));
  return {};
}
Expr sub_zero(const Node& x, Precision precision) { return is_real(second(x), 0.0, precision) ? handle(x, 0) : Expr(); }
Expr sub_negative(const Node& x, Precision) {
  return !is_i32(x) && second(x).op == Op::neg ? node(Op::add, handle(x, 0), handle(second(x), 0)) : Expr();
}
Expr by_one(const Node& x, Precision precision) {
  if (is_real(second(x), 1, precision)) return handle(x, 0);
  return is_real(second(x), -1, precision) ? node(Op::neg, handle(x, 0)) : Expr();
}
Expr signs_cancel(const Node& x, Precision) {
  if (is_i32(x) || first(x).op != Op::neg || second(x).op != Op::neg) return {};
  return node(x.op, handle(first(x), 0), handle(second(x), 0));
}
Expr div_by_power_of_two(const Node& x, Precision precision) {
  const std::optional<double> divisor = real(second(x), precision);
  if (!divisor) return {};
  int exponent = 0;
  const bool power_of_two = std::fabs(std::frexp(*divisor, &exponent)) == 0.5;
  // The divisor and its reciprocal are both normal floats: then either way rounds the same exact quotient once.
  if (!power_of_two || std::abs(exponent) > 120) return {};
  return node(Op::mul, handle(x, 0), Expr(1 / *divisor));
}
Expr square(const Node& x, Precision precision) {
  // In double, pow is not exact. In float it is computed in double, where a square of floats is.
  if (precision != Precision::f32 || !is_real(second(x), 2, precision)) return {};
  return node(Op::mul, handle(x, 0), handle(x, 0));
}
Expr pow_edges(const Node& x, Precision precision) {
  if (is_real(second(x), 1, precision)) return handle(x, 0);
  const bool to_zero = is_real(second(x), 0.0, precision) || is_real(second(x), -0.0, precision);
  return to_zero || is_real(first(x), 1, precision) ? Expr(1.0) : Expr();
}
Expr floor_of_whole(const Node& x, Precision) {
  const Op below = first(x).op;
  return below == Op::floor || below == Op::to_f32 || below == Op::floor_div ? handle(x, 0) : Expr();
}

// Both kinds of numbers.

Expr twice_negative(const Node& x, Precision) { return first(x).op == Op::neg ? handle(first(x), 0) : Expr(); }
Expr abs_of_sign(const Node& x, Precision) {
  if (first(x).op == Op::abs) return handle(x, 0);
  return first(x).op == Op::neg ? node(Op::abs, handle(first(x), 0)) : Expr();
}
Expr divide_by_one(const Node& x, Precision precision) {
  if (!is_i32(x)) return is_real(second(x), 1, precision) ? node(Op::floor, handle(x, 0)) : Expr();
  if (is_i32(second(x), 1)) return handle(x, 0);
  if (is_i32(second(x), -1)) return node(Op::neg, handle(x, 0));
  return is_i32(first(x), 0) || is_i32(second(x), 0) ? Expr(0) : Expr();
}
Expr remainder_edges(const Node& x, Precision) {
  if (!is_i32(x)) return {};
  const bool by_unit = is_i32(second(x), 1) || is_i32(second(x), -1) || is_i32(second(x), 0);
  if (by_unit || is_i32(first(x), 0) || same_operands(x)) return Expr(0);
  return first(x).op == Op::mod && first(x).operands[1] == x.operands[1] ? handle(x, 0) : Expr();
}
Expr extreme_of_same(const Node& x, Precision) {
  if (same_operands(x)) return handle(x, 0);
  if (first(x).op == x.op && (first(x).operands[0] == x.operands[1] || first(x).operands[1] == x.operands[1])) {
    return handle(x, 0);
  }
  if (second(x).op == x.op && (second(x).operands[0] == x.operands[0] || second(x).operands[1] == x.operands[0])) {
    return handle(x, 1);
  }
  return {};
}
/// min(x, largest) = x, and for integers min(x, smallest) = smallest.
Expr extreme_of_edge(const Node& x, Precision precision) {
  const bool is_min = x.op == Op::min;
  for (const std::size_t side : {0U, 1U}) {
    const Node& edge = *x.operands[side];
    Expr other = handle(x, 1 - side);
    if (is_real(edge, is_min ? kInfinity : -kInfinity, precision)) return other;
    if (is_i32(edge, is_min ? kIntMax : kIntMin)) return other;
    if (is_i32(edge, is_min ? kIntMin : kIntMax)) return handle(x, side);
  }
  return {};
}
Expr extreme_of_constants(const Node& x, Precision) {
  if (first(x).op != x.op || !is_constant(second(x)) || !is_constant(second(first(x)))) return {};
  return node(x.op, handle(first(x), 0), node(x.op, handle(first(x), 1), handle(x, 1)));
}

// Comparisons.

Expr compare_same(const Node& x, Precision) {
  if (!same_operands(x)) return {};
  const bool strict = x.op == Op::lt || x.op == Op::gt;
  if (strict) return Expr(false);
  return is_i32(first(x)) ? Expr(x.op != Op::ne) : Expr();
}
Expr compare_with_edge(const Node& x, Precision precision) {
  const std::optional<double> bound = real(second(x), precision);
  if (bound && std::isnan(*bound)) return Expr(x.op == Op::ne);
  const bool least = is_i32(second(x), kIntMin);
  const bool largest = is_i32(second(x), kIntMax);
  if ((least && x.op == Op::lt) || (largest && x.op == Op::gt)) return Expr(false);
  if ((least && x.op == Op::ge) || (largest && x.op == Op::le)) return Expr(true);
  return {};
}

// Booleans.

Expr not_not(const Node& x, Precision) { return first(x).op == Op::logical_not ? handle(first(x), 0) : Expr(); }
Expr not_comparison(const Node& x, Precision) {
  if (!has_complement(first(x))) return {};
  return node(complement(first(x).op), handle(first(x), 0), handle(first(x), 1));
}
/// and: neutral is true; or: neutral is false.
Expr logic_with_constant(const Node& x, Precision) {
  const bool neutral = x.op == Op::logical_and;
  for (const std::size_t side : {0U, 1U}) {
    if (is_boolean(*x.operands[side], neutral)) return handle(x, 1 - side);
    if (is_boolean(*x.operands[side], !neutral)) return handle(x, side);
  }
  return {};
}
Expr logic_of_same(const Node& x, Precision) {
  if (same_operands(x)) return handle(x, 0);
  return opposite(first(x), second(x)) ? Expr(x.op == Op::logical_or) : Expr();
}
/// x and (x or y) = x; x and (x and y) = x and y; and the same with or.
Expr absorbed(const Node& x, Precision) {
  for (const std::size_t side : {0U, 1U}) {
    const Node& outer = *x.operands[side];
    const Node& inner = *x.operands[1 - side];
    if (inner.op != Op::logical_and && inner.op != Op::logical_or) continue;
    if (&first(inner) != &outer && &second(inner) != &outer) continue;
    return handle(x, inner.op == x.op ? 1 - side : side);
  }
  return {};
}
Expr xor_edges(const Node& x, Precision) {
  if (same_operands(x)) return Expr(false);
  if (opposite(first(x), second(x))) return Expr(true);
  for (const std::size_t side : {0U, 1U}) {
    if (is_boolean(*x.operands[side], false)) return handle(x, 1 - side);
    if (is_boolean(*x.operands[side], true)) return node(Op::logical_not, handle(x, 1 - side));
  }
  return {};
}

// where.

Expr where_decided(const Node& x, Precision) {
  if (is_constant(first(x))) return handle(x, first(x).boolean() ? 1 : 2);
  return x.operands[1] == x.operands[2] ? handle(x, 1) : Expr();
}
Expr where_not(const Node& x, Precision) {
  if (first(x).op != Op::logical_not) return {};
  return make(Op::where, x.type, std::array{handle(first(x), 0), handle(x, 2), handle(x, 1)});
}
Expr where_again(const Node& x, Precision) {
  const Node& yes = *x.operands[1];
  const Node& no = *x.operands[2];
  const bool in_yes = yes.op == Op::where && yes.operands[0] == x.operands[0];
  const bool in_no = no.op == Op::where && no.operands[0] == x.operands[0];
  if (!in_yes && !in_no) return {};
  return make(Op::where, x.type,
              std::array{handle(x, 0), in_yes ? handle(yes, 1) : handle(x, 1), in_no ? handle(no, 2) : handle(x, 2)});
}
Expr where_of_booleans(const Node& x, Precision) {
  const Node& yes = *x.operands[1];
  const Node& no = *x.operands[2];
  if (is_boolean(yes, true))
    return is_boolean(no, false) ? handle(x, 0) : node(Op::logical_or, handle(x, 0), handle(x, 2));
  if (is_boolean(no, false)) return node(Op::logical_and, handle(x, 0), handle(x, 1));
  return is_boolean(yes, false) && is_boolean(no, true) ? node(Op::logical_not, handle(x, 0)) : Expr();
}

// Casts.

Expr i32_of_f32(const Node& x, Precision precision) {
  if (first(x).op != Op::to_f32) return {};
  const Expr inner = handle(first(x), 0);
  if (inner.type() == ExprType::boolean) return node(Op::to_i32, inner);
  return precision == Precision::f64 ? inner : Expr();  // a float holds 24 bits of an i32
}
Expr f32_of_i32(const Node& x, Precision) {
  const bool of_boolean = first(x).op == Op::to_i32 && first(first(x)).type == ExprType::boolean;
  return of_boolean ? node(Op::to_f32, handle(first(x), 0)) : Expr();
}

constexpr bool kMayGrow = true;

constexpr Rule kRules[] = {
    {Op::add, "sums of i32 terms, collected", collected, kMayGrow},
    {Op::add, "x + y = y + x", ordered},
    {Op::add, "x + -0 = x; x + 0 = x where x is no -0", add_zero},
    {Op::add, "x + -y = x - y", add_negative},
    {Op::sub, "sums of i32 terms, collected", collected, kMayGrow},
    {Op::sub, "x - 0 = x", sub_zero},
    {Op::sub, "x - -y = x + y", sub_negative},
    {Op::mul, "multiples of i32 sums, collected", collected, kMayGrow},
    {Op::mul, "x * y = y * x", ordered},
    {Op::mul, "x * 1 = x; x * -1 = -x", by_one},
    {Op::mul, "-x * -y = x * y", signs_cancel},
    {Op::div, "x / 1 = x; x / -1 = -x", by_one},
    {Op::div, "-x / -y = x / y", signs_cancel},
    {Op::div, "x / 2**n = x * 2**-n", div_by_power_of_two, kMayGrow},
    {Op::floor_div, "x // 1 = x (f32: floor(x)); x // -1 = -x; x // 0 = 0 // x = 0", divide_by_one},
    {Op::mod, "x % 1 = x % -1 = x % 0 = 0 % x = x % x = 0; x % y % y = x % y", remainder_edges},
    {Op::neg, "negatives of i32 sums, collected", collected, kMayGrow},
    {Op::neg, "--x = x", twice_negative},
    {Op::abs, "abs(abs(x)) = abs(x); abs(-x) = abs(x)", abs_of_sign},
    {Op::min, "min(x, y) = min(y, x)", ordered},
    {Op::min, "min(x, x) = x; min(min(x, y), y) = min(x, y)", extreme_of_same},
    {Op::min, "min(x, largest) = x", extreme_of_edge},
    {Op::min, "min(min(x, 1), 2) = min(x, 1)", extreme_of_constants},
    {Op::max, "max(x, y) = max(y, x)", ordered},
    {Op::max, "max(x, x) = x; max(max(x, y), y) = max(x, y)", extreme_of_same},
    {Op::max, "max(x, smallest) = x", extreme_of_edge},
    {Op::max, "max(max(x, 1), 2) = max(x, 2)", extreme_of_constants},

    {Op::lt, "x < y = y > x", ordered},
    {Op::lt, "x < x = False", compare_same},
    {Op::lt, "x < smallest = x < nan = False", compare_with_edge},
    {Op::le, "x <= y = y >= x", ordered},
    {Op::le, "x <= x = True", compare_same},
    {Op::le, "x <= largest = True; x <= nan = False", compare_with_edge},
    {Op::gt, "x > y = y < x", ordered},
    {Op::gt, "x > x = False", compare_same},
    {Op::gt, "x > largest = x > nan = False", compare_with_edge},
    {Op::ge, "x >= y = y <= x", ordered},
    {Op::ge, "x >= x = True", compare_same},
    {Op::ge, "x >= smallest = True; x >= nan = False", compare_with_edge},
    {Op::eq, "equal i32 sums, collected", collected, kMayGrow},
    {Op::eq, "x == y = y == x", ordered},
    {Op::eq, "x == x = True", compare_same},
    {Op::eq, "x == nan = False", compare_with_edge},
    {Op::ne, "different i32 sums, collected", collected, kMayGrow},
    {Op::ne, "x != y = y != x", ordered},
    {Op::ne, "x != x = False", compare_same},
    {Op::ne, "x != nan = True", compare_with_edge},

    {Op::logical_and, "x and y = y and x", ordered},
    {Op::logical_and, "x and True = x; x and False = False", logic_with_constant},
    {Op::logical_and, "x and x = x; x and not x = False", logic_of_same},
    {Op::logical_and, "x and (x or y) = x; x and (x and y) = x and y", absorbed},
    {Op::logical_or, "x or y = y or x", ordered},
    {Op::logical_or, "x or False = x; x or True = True", logic_with_constant},
    {Op::logical_or, "x or x = x; x or not x = True", logic_of_same},
    {Op::logical_or, "x or (x and y) = x; x or (x or y) = x or y", absorbed},
    {Op::logical_xor, "x ^ y = y ^ x", ordered},
    {Op::logical_xor, "x ^ x = False; x ^ not x = True; x ^ False = x; x ^ True = not x", xor_edges},
    {Op::logical_not, "not not x = x", not_not},
    {Op::logical_not, "not x < y = x >= y for i32; not x == y = x != y", not_comparison},

    {Op::where, "where(True, x, y) = x; where(c, x, x) = x", where_decided},
    {Op::where, "where(not c, x, y) = where(c, y, x)", where_not},
    {Op::where, "where(c, where(c, x, y), z) = where(c, x, z)", where_again},
    {Op::where, "where(c, True, x) = c or x; where(c, x, False) = c and x; where(c, False, True) = not c",
     where_of_booleans},

    {Op::to_i32, "i32(f32(x)) = i32(x) of a boolean; x in f64", i32_of_f32},
    {Op::to_f32, "f32(i32(x)) = f32(x) of a boolean", f32_of_i32},
    {Op::floor, "floor(x) = x where x is whole", floor_of_whole},
    {Op::pow, "pow(x, 2) = x * x in f32", square},
    {Op::pow, "pow(x, 1) = x; pow(x, 0) = pow(1, x) = 1", pow_edges},
};

}  // namespace

std::span<const Rule> rules_of(Op op) {
  static const auto kByOperation = [] {
    std::array<std::vector<Rule>, kOpCount> by_operation;
    for (const Rule& rule : kRules) by_operation[static_cast<std::size_t>(rule.op)].push_back(rule);
    return by_operation;
  }();
  return kByOperation[static_cast<std::size_t>(op)];
}

Value constant_value(const Node& constant, Precision precision) {
  if (constant.type == ExprType::i32) return constant.i32();
  if (constant.type == ExprType::boolean) return constant.boolean();
  return precision == Precision::f32 ? static_cast<double>(static_cast<float>(constant.f32())) : constant.f32();
}

}  // namespace heddle::expr
