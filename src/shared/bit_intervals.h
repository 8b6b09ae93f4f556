// Intervals of the bit operations on i32: & | ^ ~ << >>. Those of & | ^ are the least that hold every result: the ends
// are found bit by bit from the highest on (Warren, Hacker's Delight, 4-3). Plain integers, no headers.
#pragma once

#include "shared/intervals.h"

namespace heddle::shared {

namespace bits {

/// 32-bit words from lo to hi.
struct Words {
  unsigned lo, hi;
};
inline constexpr unsigned kHighest = 1U << 31;

constexpr unsigned least_or(Words x, Words y) {
  for (unsigned bit = kHighest; bit != 0; bit >>= 1) {
    if ((x.lo & bit) == (y.lo & bit)) continue;
    const bool of_x = (x.lo & bit) == 0;  // the one that lacks it
    const unsigned raised = ((of_x ? x.lo : y.lo) | bit) & (0U - bit);
    if (raised > (of_x ? x.hi : y.hi)) continue;
    return raised | (of_x ? y.lo : x.lo);
  }
  return x.lo | y.lo;
}

constexpr unsigned largest_or(Words x, Words y) {
  for (unsigned bit = kHighest; bit != 0; bit >>= 1) {
    if ((x.hi & y.hi & bit) == 0) continue;
    const unsigned of_x = (x.hi - bit) | (bit - 1), of_y = (y.hi - bit) | (bit - 1);
    if (of_x >= x.lo) return of_x | y.hi;
    if (of_y >= y.lo) return x.hi | of_y;
  }
  return x.hi | y.hi;
}

constexpr unsigned least_xor(Words x, Words y) {
  for (unsigned bit = kHighest; bit != 0; bit >>= 1) {
    if ((x.lo & bit) == (y.lo & bit)) continue;
    const bool of_x = (x.lo & bit) == 0;  // the one that lacks it
    const unsigned raised = ((of_x ? x.lo : y.lo) | bit) & (0U - bit);
    if (of_x && raised <= x.hi) x.lo = raised;
    if (!of_x && raised <= y.hi) y.lo = raised;
  }
  return x.lo ^ y.lo;
}

constexpr unsigned largest_xor(Words x, Words y) {
  for (unsigned bit = kHighest; bit != 0; bit >>= 1) {
    if ((x.hi & y.hi & bit) == 0) continue;
    const unsigned of_x = (x.hi - bit) | (bit - 1), of_y = (y.hi - bit) | (bit - 1);
    if (of_x >= x.lo) {
      x.hi = of_x;
    } else if (of_y >= y.lo) {
      y.hi = of_y;
    }
  }
  return x.hi ^ y.hi;
}

constexpr Words inverted(Words x) { return {~x.hi, ~x.lo}; }
constexpr Words of_or(Words x, Words y) { return {least_or(x, y), largest_or(x, y)}; }
constexpr Words of_and(Words x, Words y) { return inverted(of_or(inverted(x), inverted(y))); }
constexpr Words of_xor(Words x, Words y) { return {least_xor(x, y), largest_xor(x, y)}; }

/// The words of one sign of an i32 interval are in order; over both signs the results are joined.
template <class F>
constexpr Interval by_sign(Interval x, Interval y, F&& f) {
  Interval result = {kLargestI32, kLowestI32};
  for (int signs = 0; signs < 4; ++signs) {
    const Interval a = (signs & 1) != 0 ? Interval{x.lo, smaller(x.hi, -1)} : Interval{larger(x.lo, 0), x.hi};
    const Interval b = (signs & 2) != 0 ? Interval{y.lo, smaller(y.hi, -1)} : Interval{larger(y.lo, 0), y.hi};
    if (a.empty() || b.empty()) continue;
    const Words words = f(Words{static_cast<unsigned>(a.lo), static_cast<unsigned>(a.hi)},
                          Words{static_cast<unsigned>(b.lo), static_cast<unsigned>(b.hi)});
    result = hull(result, {static_cast<int>(words.lo), static_cast<int>(words.hi)});
  }
  return result;
}

}  // namespace bits

constexpr Interval bit_and(Interval x, Interval y) {
  return bits::by_sign(x, y, [](bits::Words a, bits::Words b) { return bits::of_and(a, b); });
}
constexpr Interval bit_or(Interval x, Interval y) {
  return bits::by_sign(x, y, [](bits::Words a, bits::Words b) { return bits::of_or(a, b); });
}
constexpr Interval bit_xor(Interval x, Interval y) {
  return bits::by_sign(x, y, [](bits::Words a, bits::Words b) { return bits::of_xor(a, b); });
}
constexpr Interval bit_not(Interval x) { return {-1 - x.hi, -1 - x.lo}; }

/// A count outside 0 to 31 gives 0. By a literal as tight as a product, which may wrap.
constexpr Interval shift_left(Interval x, Interval count) {
  const Interval inside = {larger(count.lo, 0), smaller(count.hi, 31)};
  if (inside.empty()) return {0, 0};
  const Interval shifted = intervals::over_corners(x, inside, [](long long a, long long n) { return a * (1LL << n); });
  const Interval result = inside.lo == inside.hi ? modulo_period(shifted) : wrapped(shifted);
  return inside == count ? result : hull(result, {0, 0});
}
/// A count outside 0 to 31 counts as 31.
constexpr Interval shift_right(Interval x, Interval count) {
  Interval inside = {larger(count.lo, 0), smaller(count.hi, 31)};
  if (inside.empty()) inside = {31, 31};
  if (!(count.lo >= 0 && count.hi <= 31)) inside.hi = 31;
  return intervals::over_corners(x, inside, [](long long a, long long n) { return a >> n; });
}

}  // namespace heddle::shared
