// Ranges of real operations. Ends are computed with the operation's own rounding, which is monotone; a transcendental's
// are widened by its error in ops.def. NaN is tracked: infinity - infinity, 0 * infinity, log(-1).
#pragma once

#include <algorithm>
#include <limits>

#include "expr/interpret.h"
#include "expr/range.h"
#include "shared/intervals.h"

namespace heddle::expr::real {

inline constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// A range whose only value is NaN has lo > hi.
inline constexpr Range kNanOnly = {std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity(),
                                   true};
inline bool only_nan(const Range& x) { return x.lo > x.hi; }

/// A value as the precision stores it.
inline double stored(double x, Precision precision) {
  return precision == Precision::f32 ? static_cast<double>(static_cast<float>(x)) : x;
}

Range add(const Range& x, const Range& y, Precision precision);
Range neg(const Range& x);
Range mul(const Range& x, const Range& y, Precision precision);
Range square(const Range& x, Precision precision);
Range div(const Range& x, const Range& y, Precision precision);
/// floor, ceil, nearbyint, trunc.
Range rounded(const Range& x, double (*whole)(double));
Range sign(const Range& x);
Range mod(const Range& x, const Range& y, Precision precision);
Range abs(const Range& x);
Range min(const Range& x, const Range& y);
Range max(const Range& x, const Range& y);
Range sqrt(const Range& x, Precision precision);
Range rsqrt(const Range& x, Precision precision);
Range tan(const Range& x, Precision precision);
Range pow(const Range& x, const Range& y, Precision precision);

using Function = double (*)(double);
inline Range not_negative(const Range& x) { return {std::max(x.lo, 0.0), x.hi, x.nan}; }
/// A function that rises everywhere, or falls everywhere.
Range monotone(Op op, const Range& x, Precision precision, Function f);
/// A rising function that keeps the sign: what is not negative does not become so by an error.
Range rising_through_zero(Op op, const Range& x, Precision precision, Function f);
/// Rises from -inf at `pole`; NaN below.
Range logarithm(Op op, const Range& x, Precision precision, Function log, double pole);
/// sin or cos: 1 at first_top, then -1 and 1 in turn every half turn.
Range wave(Op op, const Range& x, Precision precision, Function f, double first_top);

/// lt, le, gt, ge, eq, ne; `same`: x and y are one value.
Range compare(Op op, const Range& x, const Range& y, bool same);
/// The relation of a comparison's op.
shared::Relation relation(Op op);
inline Range as_range(shared::Truth truth) { return Range::boolean(truth.can_be_false, truth.can_be_true); }

}  // namespace heddle::expr::real
