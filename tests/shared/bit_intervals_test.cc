// Intervals of bit operations are the least that hold every result: against all pairs of numbers.
#include "shared/bit_intervals.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>

namespace heddle::shared {
namespace {

template <class F>
Interval all_of(Interval x, Interval y, F&& f) {
  Interval result = {kLargestI32, kLowestI32};
  for (long long a = x.lo; a <= x.hi; ++a) {
    for (long long b = y.lo; b <= y.hi; ++b) {
      const long long value = f(static_cast<std::int32_t>(a), static_cast<std::int32_t>(b));
      result = hull(result, {value, value});
    }
  }
  return result;
}

std::int32_t left(std::int32_t x, std::int32_t count) {
  return count < 0 || count > 31 ? 0 : static_cast<std::int32_t>(static_cast<std::uint32_t>(x) << count);
}
std::int32_t right(std::int32_t x, std::int32_t count) { return x >> (count < 0 || count > 31 ? 31 : count); }

void expect_exact(Interval x, Interval y) {
  SCOPED_TRACE(testing::Message() << "[" << x.lo << ", " << x.hi << "], [" << y.lo << ", " << y.hi << "]");
  EXPECT_EQ(bit_and(x, y), all_of(x, y, [](auto a, auto b) { return a & b; }));
  EXPECT_EQ(bit_or(x, y), all_of(x, y, [](auto a, auto b) { return a | b; }));
  EXPECT_EQ(bit_xor(x, y), all_of(x, y, [](auto a, auto b) { return a ^ b; }));
  EXPECT_EQ(bit_not(x), all_of(x, x, [](auto a, auto) { return ~a; }));
  EXPECT_EQ(shift_right(x, y), all_of(x, y, right));
  const Interval shifted = shift_left(x, y), exact = all_of(x, y, left);
  EXPECT_LE(shifted.lo, exact.lo);
  EXPECT_GE(shifted.hi, exact.hi);
  // Exact where nothing wraps.
  const bool small = std::max(-x.lo, x.hi) <= (kLargestI32 >> std::clamp<long long>(y.hi, 0, 31));
  if (small) {
    EXPECT_EQ(shifted, exact);
  }
}

TEST(BitIntervals, OfSmallNumbers) {
  for (int x_lo = -6; x_lo <= 6; ++x_lo) {
    for (int x_hi = x_lo; x_hi <= 6; ++x_hi) {
      for (int y_lo = -6; y_lo <= 6; ++y_lo) {
        for (int y_hi = y_lo; y_hi <= 6; ++y_hi) expect_exact({x_lo, x_hi}, {y_lo, y_hi});
      }
    }
    if (HasFailure()) return;
  }
}

TEST(BitIntervals, OfNumbersOfEverySize) {
  std::mt19937 random(5);
  const auto draw = [&] {
    const long long magnitude = random() >> (random() % 32);
    const long long lo = std::clamp((random() % 2 == 0 ? 1 : -1) * (magnitude >> 1), kLowestI32, kLargestI32);
    return Interval{lo, std::min<long long>(kLargestI32, lo + random() % 40)};
  };
  for (int round = 0; round < 4000 && !HasFailure(); ++round) expect_exact(draw(), draw());
  expect_exact({kLargestI32 - 3, kLargestI32}, {kLowestI32, kLowestI32 + 3});
}

TEST(BitIntervals, ShiftsByCountsAroundTheWidth) {
  for (const Interval x : {Interval{0, 0}, {1, 1}, {-1, -1}, {3, 9}, {-9, -3}, {-4, 7}, {kLowestI32, kLowestI32 + 2}}) {
    for (long long lo = -2; lo <= 34; ++lo) {
      for (long long hi = lo; hi <= 34; ++hi) expect_exact(x, {lo, hi});
    }
  }
}

}  // namespace
}  // namespace heddle::shared
