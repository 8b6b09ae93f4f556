#include "expr/rules.h"

#include <array>
#include <cmath>
#include <limits>
#include <optional>
#include <vector>

#include "expr/collect.h"
#include "expr/comparisons.h"
#include "expr/order.h"
#include "expr/rule_parts.h"

namespace heddle::expr {
namespace {

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
  // Swapping the operands of min or max could return the other of two zeros.
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
  switch (first(x).op) {
    case Op::floor:
    case Op::ceil:
    case Op::round:
    case Op::trunc:
    case Op::to_f32:
    case Op::floor_div:
    case Op::sign:
      return handle(x, 0);
    default:
      return {};
  }
}
/// An integer as f32 is a finite number.
Expr test_of_integer(const Node& x, Precision) { return first(x).op == Op::to_f32 ? Expr(false) : Expr(); }

// Both kinds of numbers.

Expr twice_negative(const Node& x, Precision) { return first(x).op == Op::neg ? handle(first(x), 0) : Expr(); }
Expr sign_of_sign(const Node& x, Precision) { return first(x).op == Op::sign ? handle(x, 0) : Expr(); }
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

// Entries of kindred operations read alike. Each is written out, because explain() and people read them one by one.
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

    {Op::sign, "sign(sign(x)) = sign(x)", sign_of_sign},

    {Op::bit_and, "x & y = y & x", ordered},
    {Op::bit_or, "x | y = y | x", ordered},
    {Op::bit_xor, "x ^ y = y ^ x", ordered},

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

    {Op::isnan, "isnan(f32(x)) = False of an integer", test_of_integer},
    {Op::isinf, "isinf(f32(x)) = False of an integer", test_of_integer},

    {Op::logical_and, "x and y = y and x", ordered},
    {Op::logical_or, "x or y = y or x", ordered},
    {Op::logical_xor, "x ^ y = y ^ x", ordered},

    {Op::to_i32, "i32(f32(x)) = i32(x) of a boolean; x in f64", i32_of_f32},
    {Op::to_f32, "f32(i32(x)) = f32(x) of a boolean", f32_of_i32},
    {Op::floor, "floor(x) = x where x is whole", floor_of_whole},
    {Op::ceil, "ceil(x) = x where x is whole", floor_of_whole},
    {Op::round, "round(x) = x where x is whole", floor_of_whole},
    {Op::trunc, "trunc(x) = x where x is whole", floor_of_whole},
    {Op::pow, "pow(x, 2) = x * x in f32", square},
    {Op::pow, "pow(x, 1) = x; pow(x, 0) = pow(1, x) = 1", pow_edges},
};

}  // namespace

std::span<const Rule> rules_of(Op op) {
  static const auto kByOperation = [] {
    std::array<std::vector<Rule>, kOpCount> by_operation;
    for (const Rule& rule : kRules) by_operation[static_cast<std::size_t>(rule.op)].push_back(rule);
    for (const Rule& rule : rules_of_logic()) by_operation[static_cast<std::size_t>(rule.op)].push_back(rule);
    for (const Rule& rule : rules_of_bits()) by_operation[static_cast<std::size_t>(rule.op)].push_back(rule);
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
