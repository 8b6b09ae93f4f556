#include "expr/range_ops.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numbers>

#include "expr/linear_form.h"
#include "expr/real_ranges.h"
#include "shared/bit_intervals.h"

namespace heddle::expr {
namespace {

Interval integers(const Range& x) { return {static_cast<std::int64_t>(x.lo), static_cast<std::int64_t>(x.hi)}; }

Range as_range(Interval x) { return {static_cast<double>(x.lo), static_cast<double>(x.hi), false}; }

/// One row for each operation, named as in ops.def.
struct Rows {
  using X = const RangeOperands&;
  using Row = Range (*)(X, Precision);

  static bool is_i32(X x) { return x.type == ExprType::i32; }
  static Interval first(X x) { return integers(x[0]); }
  static Interval second(X x) { return integers(x[1]); }

  // The program knows these by their payload (range_program.cc).
  static constexpr Row constant = nullptr;
  static constexpr Row leaf = nullptr;
  static constexpr Row param = nullptr;
  static constexpr Row read = nullptr;
  static constexpr Row at = nullptr;

  static Range add(X x, Precision precision) {
    if (is_i32(x)) return as_range(shared::add(first(x), second(x)));
    return real::add(x[0], x[1], precision);
  }
  static Range sub(X x, Precision precision) {
    if (is_i32(x)) return as_range(shared::sub(first(x), second(x)));
    if (x.same) return {0, 0, x[0].nan || std::isinf(x[0].lo) || std::isinf(x[0].hi)};
    return real::add(x[0], real::neg(x[1]), precision);
  }
  static Range mul(X x, Precision precision) {
    if (is_i32(x)) return as_range(x.same ? shared::square(first(x)) : shared::mul(first(x), second(x)));
    return x.same ? real::square(x[0], precision) : real::mul(x[0], x[1], precision);
  }
  static Range div(X x, Precision precision) { return real::div(x[0], x[1], precision); }
  static Range floor_div(X x, Precision precision) {
    if (is_i32(x)) return as_range(shared::floor_div(first(x), second(x)));
    return real::rounded(real::div(x[0], x[1], precision), std::floor);
  }
  static Range mod(X x, Precision precision) {
    if (is_i32(x)) return as_range(shared::mod(first(x), second(x)));
    return real::mod(x[0], x[1], precision);
  }
  static Range neg(X x, Precision) { return is_i32(x) ? as_range(shared::neg(first(x))) : real::neg(x[0]); }
  static Range abs(X x, Precision) { return is_i32(x) ? as_range(shared::abs(first(x))) : real::abs(x[0]); }
  static Range min(X x, Precision) { return real::min(x[0], x[1]); }
  static Range max(X x, Precision) { return real::max(x[0], x[1]); }

  static Range sign(X x, Precision) { return is_i32(x) ? as_range(shared::sign(first(x))) : real::sign(x[0]); }

  static Range bit_and(X x, Precision) { return as_range(shared::bit_and(first(x), second(x))); }
  static Range bit_or(X x, Precision) { return as_range(shared::bit_or(first(x), second(x))); }
  static Range bit_xor(X x, Precision) { return as_range(shared::bit_xor(first(x), second(x))); }
  static Range bit_not(X x, Precision) { return as_range(shared::bit_not(first(x))); }
  static Range shift_left(X x, Precision) { return as_range(shared::shift_left(first(x), second(x))); }
  static Range shift_right(X x, Precision) { return as_range(shared::shift_right(first(x), second(x))); }

  static Range lt(X x, Precision) { return real::compare(Op::lt, x[0], x[1], x.same); }
  static Range le(X x, Precision) { return real::compare(Op::le, x[0], x[1], x.same); }
  static Range gt(X x, Precision) { return real::compare(Op::gt, x[0], x[1], x.same); }
  static Range ge(X x, Precision) { return real::compare(Op::ge, x[0], x[1], x.same); }
  static Range eq(X x, Precision) { return real::compare(Op::eq, x[0], x[1], x.same); }
  static Range ne(X x, Precision) { return real::compare(Op::ne, x[0], x[1], x.same); }

  static Range isnan(X x, Precision) { return real::as_range(shared::holds_nan(x[0])); }
  static Range isinf(X x, Precision) { return real::as_range(shared::holds_infinity(x[0], real::kInfinity)); }

  static Range logical_and(X x, Precision) {
    return Range::boolean(x.opposite || x[0].lo == 0 || x[1].lo == 0, !x.opposite && x[0].hi == 1 && x[1].hi == 1);
  }
  static Range logical_or(X x, Precision) {
    return Range::boolean(!x.opposite && x[0].lo == 0 && x[1].lo == 0, x.opposite || x[0].hi == 1 || x[1].hi == 1);
  }
  static Range logical_xor(X x, Precision) {
    if (x.same || x.opposite) return Range::point(x.opposite ? 1 : 0);
    const bool decided = x[0].is_point() && x[1].is_point();
    return Range::boolean(!decided || x[0].lo == x[1].lo, !decided || x[0].lo != x[1].lo);
  }
  static Range logical_not(X x, Precision) { return Range::boolean(x[0].hi == 1, x[0].lo == 0); }
  static Range where(X x, Precision) {
    if (x[0].is_point()) return x[0].always_true() ? x[1] : x[2];
    return hull(x[1], x[2]);
  }

  static Range to_f32(X x, Precision precision) {
    return {real::stored(x[0].lo, precision), real::stored(x[0].hi, precision), false};
  }
  static Range to_i32(X x, Precision) {
    if (x.type == ExprType::boolean) return x[0];
    if (real::only_nan(x[0])) return Range::point(0);
    const auto converted = [](double a) { return std::clamp(std::trunc(a), -2147483648.0, 2147483647.0); };
    const Range whole = {converted(x[0].lo), converted(x[0].hi), false};
    return x[0].nan ? hull(whole, Range::point(0)) : whole;
  }

  static Range floor(X x, Precision) { return real::rounded(x[0], std::floor); }
  static Range ceil(X x, Precision) { return real::rounded(x[0], std::ceil); }
  static Range round(X x, Precision) { return real::rounded(x[0], std::nearbyint); }
  static Range trunc(X x, Precision) { return real::rounded(x[0], std::trunc); }
  static Range sqrt(X x, Precision precision) { return real::sqrt(x[0], precision); }
  static Range rsqrt(X x, Precision precision) { return real::rsqrt(x[0], precision); }
  static Range exp(X x, Precision precision) {
    return real::not_negative(real::monotone(Op::exp, x[0], precision, std::exp));
  }
  static Range exp2(X x, Precision precision) {
    return real::not_negative(real::monotone(Op::exp2, x[0], precision, std::exp2));
  }
  static Range expm1(X x, Precision precision) {
    return real::rising_through_zero(Op::expm1, x[0], precision, std::expm1);
  }
  static Range log(X x, Precision precision) { return real::logarithm(Op::log, x[0], precision, std::log, 0); }
  static Range log2(X x, Precision precision) { return real::logarithm(Op::log2, x[0], precision, std::log2, 0); }
  static Range log1p(X x, Precision precision) { return real::logarithm(Op::log1p, x[0], precision, std::log1p, -1); }
  static Range tanh(X x, Precision precision) {
    return real::rising_through_zero(Op::tanh, x[0], precision, std::tanh);
  }
  static Range sigmoid(X x, Precision precision) {
    const auto of = [](double a) { return 1 / (1 + std::exp(-a)); };
    return real::not_negative(real::monotone(Op::sigmoid, x[0], precision, of));
  }
  static Range sin(X x, Precision precision) {
    return real::wave(Op::sin, x[0], precision, std::sin, std::numbers::pi / 2);
  }
  static Range cos(X x, Precision precision) { return real::wave(Op::cos, x[0], precision, std::cos, 0); }
  static Range tan(X x, Precision precision) { return real::tan(x[0], precision); }
  static Range atan(X x, Precision precision) {
    return real::rising_through_zero(Op::atan, x[0], precision, std::atan);
  }
  static Range erf(X x, Precision precision) { return real::rising_through_zero(Op::erf, x[0], precision, std::erf); }
  static Range erfc(X x, Precision precision) {
    return real::not_negative(real::monotone(Op::erfc, x[0], precision, std::erfc));
  }
  static Range pow(X x, Precision precision) { return real::pow(x[0], x[1], precision); }

  static Range random_uniform(X, Precision) { return {0, 1 - 0x1p-15, false}; }

  static constexpr std::array<Row, kOpCount> table = {
#define HEDDLE_OP(name, form, text, arity, kind, ulp) name,
#include "expr/ops.def"
  };
};

}  // namespace

Range op_range(Op op, const RangeOperands& operands, Precision precision) {
  return Rows::table[static_cast<std::size_t>(op)](operands, precision);
}

}  // namespace heddle::expr
