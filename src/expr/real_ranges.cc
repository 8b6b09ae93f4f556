#include "expr/real_ranges.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numbers>

#include "heddle/error.h"

namespace heddle::expr::real {
namespace {

bool has_zero(const Range& x) { return x.lo <= 0 && x.hi >= 0; }
bool has_infinity(const Range& x) { return x.lo == -kInfinity || x.hi == kInfinity; }

/// `steps` representable values above x (below, when negative).
template <class Real, class Bits>
Real stepped(Real x, Bits steps) {
  constexpr Bits kSign = std::numeric_limits<Bits>::min();
  constexpr Bits kLargest = std::bit_cast<Bits>(std::numeric_limits<Real>::infinity());
  const Bits bits = std::bit_cast<Bits>(x);
  const Bits order = std::clamp<Bits>((bits < 0 ? kSign - bits : bits) + steps, -kLargest, kLargest);
  return std::bit_cast<Real>(order < 0 ? kSign - order : order);
}

double stepped(double x, int steps, Precision precision) {
  if (precision == Precision::f64) return stepped<double, std::int64_t>(x, steps);
  return stepped<float, std::int32_t>(static_cast<float>(x), steps);
}

/// Ends that a backend may miss by the error of `op`. One unit more for the rounding of the ends themselves; twice the
/// steps, because below a power of two a step is half a unit.
Range widened(Op op, double lo, double hi, bool nan, Precision precision) {
  const int steps = 2 * (info(op).ulp + 1);
  return {stepped(lo, -steps, precision), stepped(hi, steps, precision), nan};
}

/// The least and largest of f at the four corners; corners that are NaN do not count.
template <class F>
Range over_corners(const Range& x, const Range& y, bool nan, F&& f) {
  Range result = {kInfinity, -kInfinity, nan};
  for (const double a : {x.lo, x.hi}) {
    for (const double b : {y.lo, y.hi}) {
      const double value = f(a, b);
      if (std::isnan(value)) continue;
      result.lo = std::min(result.lo, value);
      result.hi = std::max(result.hi, value);
    }
  }
  return result;
}

/// x % y, rounded as ops.def says.
template <class Real>
Real remainder(Real x, Real y) {
  const Real toward_zero = std::fmod(x, y);
  return toward_zero != 0 && (toward_zero < 0) != (y < 0) ? toward_zero + y : toward_zero;
}
double remainder(double x, double y, Precision precision) {
  if (precision == Precision::f64) return remainder<double>(x, y);
  return remainder<float>(static_cast<float>(x), static_cast<float>(y));
}

/// x to the power of one whole number, x having negative values.
Range whole_power(const Range& x, double exponent, const Range& of_magnitude) {
  const bool even = std::fmod(exponent, 2) == 0;
  if (even) return of_magnitude;
  if (exponent < 0 && x.hi >= 0) return {-kInfinity, kInfinity, false};
  const double lo = -std::pow(-x.lo, exponent);
  const double hi = x.hi < 0 ? -std::pow(-x.hi, exponent) : std::pow(x.hi, exponent);
  return {std::min(lo, hi), std::max(lo, hi), false};
}

}  // namespace

Range add(const Range& x, const Range& y, Precision precision) {
  const bool nan =
      x.nan || y.nan || (x.lo == -kInfinity && y.hi == kInfinity) || (x.hi == kInfinity && y.lo == -kInfinity);
  const double lo = stored(x.lo + y.lo, precision);
  const double hi = stored(x.hi + y.hi, precision);
  // Only opposite infinities make an end NaN; one side is then that infinity alone, and so is every sum.
  return {std::isnan(lo) ? kInfinity : lo, std::isnan(hi) ? -kInfinity : hi, nan};
}

Range neg(const Range& x) { return {-x.hi, -x.lo, x.nan}; }

Range mul(const Range& x, const Range& y, Precision precision) {
  const bool nan = x.nan || y.nan || (has_zero(x) && has_infinity(y)) || (has_infinity(x) && has_zero(y));
  return over_corners(x, y, nan, [precision](double a, double b) {
    const double product = a * b;
    return std::isnan(product) ? 0 : stored(product, precision);  // beside 0 * infinity there is 0 * large
  });
}

Range square(const Range& x, Precision precision) {
  const Range magnitude = abs(x);
  return {stored(magnitude.lo * magnitude.lo, precision), stored(magnitude.hi * magnitude.hi, precision), x.nan};
}

Range div(const Range& x, const Range& y, Precision precision) {
  const bool nan = x.nan || y.nan || (has_zero(x) && has_zero(y)) || (has_infinity(x) && has_infinity(y));
  if (has_zero(y)) return {-kInfinity, kInfinity, nan};
  return over_corners(x, y, nan, [precision](double a, double b) { return stored(a / b, precision); });
}

Range rounded(const Range& x, double (*whole)(double)) { return {whole(x.lo), whole(x.hi), x.nan}; }

Range sign(const Range& x) {
  const auto of = [](double a) { return static_cast<double>((a > 0 ? 1 : 0) - (a < 0 ? 1 : 0)); };
  return only_nan(x) ? kNanOnly : Range{of(x.lo), of(x.hi), x.nan};
}

Range mod(const Range& x, const Range& y, Precision precision) {
  const bool nan = x.nan || y.nan || has_zero(y) || has_infinity(x);
  const bool by_zero = y.lo == 0 && y.hi == 0, of_infinity = x.lo == kInfinity || x.hi == -kInfinity;
  if (only_nan(x) || only_nan(y) || by_zero || of_infinity) return kNanOnly;
  if (y.lo == y.hi && x.hi - x.lo < std::fabs(y.lo)) {
    const double first = remainder(x.lo, y.lo, precision), last = remainder(x.hi, y.lo, precision);
    if (first < last || x.lo == x.hi) return {first, last, nan};  // no multiple of y lies between the ends
  }
  Range result = {std::min(y.lo, 0.0), std::max(y.hi, 0.0), nan};
  if (x.lo >= 0 && y.lo > 0) result.hi = std::min(result.hi, x.hi);
  if (x.hi <= 0 && y.hi < 0) result.lo = std::max(result.lo, x.lo);
  return result;
}

Range abs(const Range& x) {
  if (has_zero(x)) return {0, std::max(-x.lo, x.hi), x.nan};
  return x.hi < 0 ? neg(x) : x;
}

Range min(const Range& x, const Range& y) {
  if (only_nan(x) || only_nan(y)) return kNanOnly;
  return {std::min(x.lo, y.lo), std::min(x.hi, y.hi), x.nan || y.nan};
}

Range max(const Range& x, const Range& y) {
  if (only_nan(x) || only_nan(y)) return kNanOnly;
  return {std::max(x.lo, y.lo), std::max(x.hi, y.hi), x.nan || y.nan};
}

Range sqrt(const Range& x, Precision precision) {
  if (x.hi < 0) return kNanOnly;
  const Range inside = not_negative(x);
  return {stored(std::sqrt(inside.lo), precision), stored(std::sqrt(inside.hi), precision), x.nan || x.lo < 0};
}

Range rsqrt(const Range& x, Precision precision) {
  if (x.hi < 0) return kNanOnly;
  const bool nan = x.nan || x.lo < 0;
  if (has_zero(x)) return {-kInfinity, kInfinity, nan};  // the zero may be a negative one
  return not_negative(widened(Op::rsqrt, 1 / std::sqrt(x.hi), 1 / std::sqrt(x.lo), nan, precision));
}

Range monotone(Op op, const Range& x, Precision precision, Function f) {
  if (only_nan(x)) return kNanOnly;
  const double first = f(x.lo), last = f(x.hi);
  return widened(op, std::min(first, last), std::max(first, last), x.nan, precision);
}

Range rising_through_zero(Op op, const Range& x, Precision precision, Function f) {
  const Range range = monotone(op, x, precision, f);
  return {x.lo >= 0 ? std::max(range.lo, 0.0) : range.lo, x.hi <= 0 ? std::min(range.hi, 0.0) : range.hi, range.nan};
}

Range logarithm(Op op, const Range& x, Precision precision, Function log, double pole) {
  if (x.hi < pole) return kNanOnly;
  return monotone(op, {std::max(x.lo, pole), x.hi, x.nan || x.lo < pole}, precision, log);
}

Range wave(Op op, const Range& x, Precision precision, Function f, double first_top) {
  // Beyond, the position of an extreme is not known well enough.
  constexpr double kFarthest = 1e6;
  if (only_nan(x)) return kNanOnly;
  const bool nan = x.nan || has_infinity(x);
  if (x.lo < -kFarthest || x.hi > kFarthest) return widened(op, -1, 1, nan, precision);
  constexpr double kMargin = 1e-8;  // a near miss counts as an extreme
  const double first = std::ceil((x.lo - first_top) / std::numbers::pi - kMargin);
  const double last = std::floor((x.hi - first_top) / std::numbers::pi + kMargin);
  const bool top_first = std::fmod(first, 2) == 0;
  const bool top = last > first || (last == first && top_first);
  const bool bottom = last > first || (last == first && !top_first);
  return widened(op, bottom ? -1 : std::min(f(x.lo), f(x.hi)), top ? 1 : std::max(f(x.lo), f(x.hi)), nan, precision);
}

Range tan(const Range& x, Precision precision) {
  // A branch reaches from one pole to the next. Near a pole, and far from 0, rounding leaves the branch unknown.
  constexpr double kFarthest = 1e6, kMargin = 1e-8;
  if (only_nan(x)) return kNanOnly;
  const auto branch = [](double a, double margin) { return std::floor(a / std::numbers::pi + 0.5 + margin); };
  const bool one = x.lo >= -kFarthest && x.hi <= kFarthest && branch(x.lo, -kMargin) == branch(x.hi, kMargin);
  if (!one) return {-kInfinity, kInfinity, x.nan || has_infinity(x)};
  return monotone(Op::tan, x, precision, std::tan);
}

Range pow(const Range& x, const Range& y, Precision precision) {
  const Range one_or_nan = {1, 1, true};  // pow(1, NaN) and pow(NaN, 0) are 1
  if (only_nan(x) || only_nan(y)) return one_or_nan;
  // y * log|x| is bilinear: its extremes lie at the corners.
  const Range of_magnitude =
      over_corners(abs(x), y, false, [](double base, double exponent) { return std::pow(base, exponent); });
  Range result = of_magnitude;
  if (x.lo < 0) {
    const bool whole = y.lo == y.hi && std::floor(y.lo) == y.lo && std::isfinite(y.lo);
    result = whole ? whole_power(x, y.lo, of_magnitude) : Range{-of_magnitude.hi, of_magnitude.hi, true};
  } else if (x.lo == 0 && y.lo <= -1) {
    result.lo = -kInfinity;  // a negative zero to an odd power
  }
  if (x.nan || y.nan) result = hull(result, one_or_nan);
  const Range wide = widened(Op::pow, result.lo, result.hi, result.nan, precision);
  return result.lo >= 0 ? not_negative(wide) : wide;
}

Range compare(Op op, const Range& x, const Range& y, bool same) {
  return as_range(shared::compare(relation(op), x, y, same, x.nan || y.nan, !only_nan(x) && !only_nan(y)));
}

shared::Relation relation(Op op) {
  switch (op) {
    case Op::lt:
      return shared::Relation::lt;
    case Op::le:
      return shared::Relation::le;
    case Op::gt:
      return shared::Relation::gt;
    case Op::ge:
      return shared::Relation::ge;
    case Op::eq:
      return shared::Relation::eq;
    case Op::ne:
      return shared::Relation::ne;
    default:
      throw Error(ErrorCode::internal, "an operation that compares nothing was taken for a comparison");
  }
}

}  // namespace heddle::expr::real
