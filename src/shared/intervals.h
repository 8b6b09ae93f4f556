// Arithmetic of intervals of integers, for the host's range analysis and for the code that is generated for devices:
// every value that an operation can give lies in the result. Plain integers, no headers.
#pragma once

namespace heddle::shared {

/// Integers from lo to hi, wide enough for sums of i32 products.
struct Interval {
  long long lo, hi;
  constexpr bool empty() const { return lo > hi; }
  constexpr bool operator==(const Interval&) const = default;
};

/// The possible values of a boolean. With neither, no element comes here.
struct Truth {
  bool can_be_false, can_be_true;
  constexpr bool is_open() const { return can_be_false && can_be_true; }
  constexpr bool operator==(const Truth&) const = default;
};

inline constexpr long long kLowestI32 = -2147483648LL, kLargestI32 = 2147483647LL, kPeriod = 1LL << 32;
constexpr Interval any_i32() { return {kLowestI32, kLargestI32}; }
constexpr bool fits_i32(Interval x) { return x.lo >= kLowestI32 && x.hi <= kLargestI32; }

constexpr long long smaller(long long x, long long y) { return y < x ? y : x; }
constexpr long long larger(long long x, long long y) { return x < y ? y : x; }

/// Floor and ceiling of x / y for y > 0.
constexpr long long floor_quotient(long long x, long long y) { return x / y - (x % y < 0 ? 1 : 0); }
constexpr long long ceil_quotient(long long x, long long y) { return -floor_quotient(-x, y); }

constexpr Interval point(int x) { return {x, x}; }
constexpr Interval hull(Interval x, Interval y) { return {smaller(x.lo, y.lo), larger(x.hi, y.hi)}; }
constexpr Interval negated(Interval x) { return {-x.hi, -x.lo}; }

// ---- sums: exact over the integers, then taken modulo 2^32

/// total + coefficient * atom.
constexpr Interval plus(Interval total, long long coefficient, Interval atom) {
  const long long at_lo = coefficient * atom.lo, at_hi = coefficient * atom.hi;
  return coefficient > 0 ? Interval{total.lo + at_lo, total.hi + at_hi} : Interval{total.lo + at_hi, total.hi + at_lo};
}

/// The i32 values that are equal modulo 2^32 to an integer in x.
constexpr Interval modulo_period(Interval x) {
  if (fits_i32(x)) return x;
  const long long periods = floor_quotient(x.lo - kLowestI32, kPeriod);
  if (periods != floor_quotient(x.hi - kLowestI32, kPeriod)) return any_i32();
  return {x.lo - periods * kPeriod, x.hi - periods * kPeriod};
}

// ---- single operations of i32, which wrap

/// Bounds of integers in x after they wrap to i32.
constexpr Interval wrapped(Interval x) { return fits_i32(x) ? x : any_i32(); }

namespace intervals {

/// The least and largest of f at the four corners.
template <class F>
constexpr Interval over_corners(Interval x, Interval y, F&& f) {
  const long long a = f(x.lo, y.lo), b = f(x.lo, y.hi), c = f(x.hi, y.lo), d = f(x.hi, y.hi);
  return {smaller(smaller(a, b), smaller(c, d)), larger(larger(a, b), larger(c, d))};
}

constexpr Interval mod_positive(Interval x, Interval y) {
  if (x.lo >= 0 && x.hi < y.lo) return x;
  const long long periods = floor_quotient(x.lo, y.lo);
  if (y.lo == y.hi && periods == floor_quotient(x.hi, y.lo)) return {x.lo - periods * y.lo, x.hi - periods * y.lo};
  return {0, x.lo >= 0 ? smaller(x.hi, y.hi - 1) : y.hi - 1};
}
constexpr Interval floor_div_positive(Interval x, Interval y) {
  return over_corners(x, y, [](long long a, long long b) { return floor_quotient(a, b); });
}

constexpr Interval by_positive(Interval x, Interval y, bool remainder) {
  return remainder ? mod_positive(x, y) : floor_div_positive(x, y);
}

/// A division by the divisor's sign: x over -y is -x over y, and its remainder the negative; over zero gives zero.
constexpr Interval divided(Interval x, Interval y, bool remainder) {
  Interval result = {0, 0};
  bool some = y.lo <= 0 && y.hi >= 0;
  if (y.hi > 0) {
    const Interval above = by_positive(x, {larger(y.lo, 1), y.hi}, remainder);
    result = some ? hull(result, above) : above;
    some = true;
  }
  if (y.lo < 0) {
    const Interval mirrored = by_positive(negated(x), negated({y.lo, smaller(y.hi, -1)}), remainder);
    const Interval below = remainder ? negated(mirrored) : mirrored;
    result = some ? hull(result, below) : below;
  }
  return result;
}

}  // namespace intervals

constexpr Interval add(Interval x, Interval y) { return wrapped({x.lo + y.lo, x.hi + y.hi}); }
constexpr Interval sub(Interval x, Interval y) { return wrapped({x.lo - y.hi, x.hi - y.lo}); }
constexpr Interval neg(Interval x) { return wrapped(negated(x)); }
constexpr Interval magnitude(Interval x) {
  if (x.lo >= 0) return x;
  return x.hi <= 0 ? negated(x) : Interval{0, larger(-x.lo, x.hi)};
}
constexpr Interval abs(Interval x) { return wrapped(magnitude(x)); }
constexpr Interval mul(Interval x, Interval y) {
  return wrapped(intervals::over_corners(x, y, [](long long a, long long b) { return a * b; }));
}
constexpr Interval square(Interval x) {
  const Interval m = magnitude(x);
  return wrapped({m.lo * m.lo, m.hi * m.hi});
}
constexpr Interval floor_div(Interval x, Interval y) { return wrapped(intervals::divided(x, y, false)); }
constexpr Interval mod(Interval x, Interval y) { return wrapped(intervals::divided(x, y, true)); }
constexpr Interval min(Interval x, Interval y) { return {smaller(x.lo, y.lo), smaller(x.hi, y.hi)}; }
constexpr Interval max(Interval x, Interval y) { return {larger(x.lo, y.lo), larger(x.hi, y.hi)}; }

constexpr Interval sign(Interval x) { return {larger(smaller(x.lo, 1), -1), larger(smaller(x.hi, 1), -1)}; }

// ---- comparisons

enum class Relation : int { lt, le, gt, ge, eq, ne };

/// Compares ranges with ends lo and hi. `unordered`: NaN may be among them; `ordered`: something else may be on both
/// sides; `same`: both are one value.
template <class Range>
constexpr Truth compare(Relation relation, const Range& x, const Range& y, bool same, bool unordered, bool ordered) {
  switch (relation) {
    case Relation::lt:
      return {unordered || same || x.hi >= y.lo, ordered && !same && x.lo < y.hi};
    case Relation::le:
      return {unordered || (!same && x.hi > y.lo), ordered && (same || x.lo <= y.hi)};
    case Relation::gt:
      return {unordered || same || y.hi >= x.lo, ordered && !same && y.lo < x.hi};
    case Relation::ge:
      return {unordered || (!same && y.hi > x.lo), ordered && (same || y.lo <= x.hi)};
    default:
      break;
  }
  const bool differ = unordered || !(same || (x.lo == x.hi && y.lo == y.hi && x.lo == y.lo));
  const bool agree = ordered && x.lo <= y.hi && y.lo <= x.hi;
  return relation == Relation::eq ? Truth{differ, agree} : Truth{agree, differ};
}

/// Whether a value of a range of reals is NaN, or infinite.
template <class Range>
constexpr Truth holds_nan(const Range& x) {
  return {x.lo <= x.hi, x.nan};
}
template <class Range, class Real>
constexpr Truth holds_infinity(const Range& x, Real infinity) {
  const bool some = x.lo <= x.hi, some_finite = some && infinity > x.lo && -infinity < x.hi;
  return {x.nan || some_finite, some && (x.lo == -infinity || x.hi == infinity)};
}

/// A comparison of two sums of integers, by the difference of its sides.
struct SumComparison {
  Relation relation;
  bool always_exact;   // neither side is a sum: none wraps
  bool has_terms;      // the difference is no constant
  long long constant;  // of the difference
  long long divisor;   // of its coefficients; 0 without terms
};

/// True when no side wraps, so that their difference has the sign that it says.
constexpr bool is_exact(const SumComparison& comparison, Interval left, Interval right) {
  return comparison.always_exact || (fits_i32(left) && fits_i32(right));
}

constexpr Truth compare(const SumComparison& comparison, Interval left, Interval right, Interval difference) {
  const bool exact = is_exact(comparison, left, right);
  const Truth result =
      exact ? compare(comparison.relation, difference, Interval{0, 0}, false, false, true)
            : compare(comparison.relation, modulo_period(left), modulo_period(right), false, false, true);
  if (!result.is_open()) return result;
  // Equal sides differ by zero, or by whole periods when they wrap; a difference that is never such a number decides.
  // Without terms, an open comparison is a constant difference of sides that wrap: whole periods then.
  const long long divisor = exact ? comparison.divisor : comparison.divisor & -comparison.divisor;
  const bool between = !exact && ceil_quotient(difference.lo, kPeriod) > floor_quotient(difference.hi, kPeriod);
  const bool never_equal = between || (divisor != 0 && comparison.constant % divisor != 0);
  const bool always_equal = !comparison.has_terms && !between;
  if (always_equal) return compare(comparison.relation, Interval{0, 0}, Interval{0, 0}, true, false, true);
  if (never_equal && comparison.relation == Relation::eq) return {true, false};
  if (never_equal && comparison.relation == Relation::ne) return {false, true};
  return result;
}

/// Decides an `and` (`or`) of two comparisons that exclude each other when both are exact.
constexpr Truth decided(Truth open, bool both_exact, bool value) {
  return open.is_open() && both_exact ? Truth{!value, value} : open;
}

// ---- logic; `opposite`: one operand is the other's negation

constexpr Truth point(bool x) { return {!x, x}; }
constexpr Truth hull(Truth x, Truth y) { return {x.can_be_false || y.can_be_false, x.can_be_true || y.can_be_true}; }
constexpr Truth logical_not(Truth x) { return {x.can_be_true, x.can_be_false}; }
constexpr Truth logical_and(Truth x, Truth y, bool opposite) {
  return {opposite || x.can_be_false || y.can_be_false, !opposite && x.can_be_true && y.can_be_true};
}
constexpr Truth logical_or(Truth x, Truth y, bool opposite) {
  return {!opposite && x.can_be_false && y.can_be_false, opposite || x.can_be_true || y.can_be_true};
}
constexpr Truth logical_xor(Truth x, Truth y, bool same, bool opposite) {
  if (same || opposite) return point(opposite);
  return {(x.can_be_false && y.can_be_false) || (x.can_be_true && y.can_be_true),
          (x.can_be_false && y.can_be_true) || (x.can_be_true && y.can_be_false)};
}

template <class Range>
constexpr Range where(Truth condition, const Range& yes, const Range& no) {
  if (condition.is_open()) return hull(yes, no);
  return condition.can_be_true ? yes : no;
}

constexpr Interval to_i32(Truth x) { return {x.can_be_false ? 0 : 1, x.can_be_true ? 1 : 0}; }

}  // namespace heddle::shared
