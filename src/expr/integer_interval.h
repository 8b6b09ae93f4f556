// Intervals of integers of 64 bits, and those of the results of operations. One that may leave 64 bits is all of them.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>

namespace heddle::expr {

struct IntegerInterval {
  std::int64_t least = std::numeric_limits<std::int64_t>::min();
  std::int64_t greatest = std::numeric_limits<std::int64_t>::max();

  constexpr bool is_number() const { return least == greatest; }
  constexpr bool fits_i32() const {
    return least >= std::numeric_limits<std::int32_t>::min() && greatest <= std::numeric_limits<std::int32_t>::max();
  }
  constexpr bool operator==(const IntegerInterval&) const = default;
};

inline constexpr IntegerInterval kAnyI64;
inline constexpr IntegerInterval kAnyI32 = {std::numeric_limits<std::int32_t>::min(),
                                            std::numeric_limits<std::int32_t>::max()};

constexpr IntegerInterval hull(const IntegerInterval& x, const IntegerInterval& y) {
  return {std::min(x.least, y.least), std::max(x.greatest, y.greatest)};
}

inline IntegerInterval sum(const IntegerInterval& x, const IntegerInterval& y) {
  IntegerInterval made;
  const bool leaves = __builtin_add_overflow(x.least, y.least, &made.least) ||
                      __builtin_add_overflow(x.greatest, y.greatest, &made.greatest);
  return leaves ? kAnyI64 : made;
}
inline IntegerInterval difference(const IntegerInterval& x, const IntegerInterval& y) {
  IntegerInterval made;
  const bool leaves = __builtin_sub_overflow(x.least, y.greatest, &made.least) ||
                      __builtin_sub_overflow(x.greatest, y.least, &made.greatest);
  return leaves ? kAnyI64 : made;
}
inline IntegerInterval negated(const IntegerInterval& x) { return difference({0, 0}, x); }
inline IntegerInterval product(const IntegerInterval& x, const IntegerInterval& y) {
  std::int64_t corners[4];
  const bool leaves = __builtin_mul_overflow(x.least, y.least, &corners[0]) ||
                      __builtin_mul_overflow(x.least, y.greatest, &corners[1]) ||
                      __builtin_mul_overflow(x.greatest, y.least, &corners[2]) ||
                      __builtin_mul_overflow(x.greatest, y.greatest, &corners[3]);
  if (leaves) return kAnyI64;
  return {*std::min_element(corners, corners + 4), *std::max_element(corners, corners + 4)};
}

/// How many bits |x| has at most: 64 for the least integer.
inline int bits_of(const IntegerInterval& x) {
  const auto magnitude = [](std::int64_t one) {
    return one < 0 ? 0 - static_cast<std::uint64_t>(one) : static_cast<std::uint64_t>(one);
  };
  return static_cast<int>(std::bit_width(std::max(magnitude(x.least), magnitude(x.greatest))));
}
inline std::int64_t greatest_magnitude(const IntegerInterval& x) { return std::max(x.greatest, negated(x).greatest); }

/// x // y and x % y of any y, 0 among them: a quotient is no further from 0 than x, but for -1.
inline IntegerInterval quotient(const IntegerInterval& x, const IntegerInterval& y) {
  const IntegerInterval least_divisor = y.least > 0 ? IntegerInterval{y.least, y.least} : IntegerInterval{1, 1};
  const auto floored = [](std::int64_t n, std::int64_t d) { return n / d - (n % d < 0 ? 1 : 0); };
  const IntegerInterval sided = y.least >= 0 ? x : hull(x, negated(x));
  return {std::min<std::int64_t>(floored(sided.least, least_divisor.least), sided.least < 0 || y.least < 0 ? -1 : 0),
          std::max<std::int64_t>(floored(sided.greatest, least_divisor.least), 0)};
}
inline IntegerInterval remainder(const IntegerInterval& x, const IntegerInterval& y) {
  if (x.least >= 0 && y.least > x.greatest) return x;
  return {std::min<std::int64_t>(y.least < 0 ? y.least + 1 : 0, 0),
          std::max<std::int64_t>(y.greatest > 0 ? y.greatest - 1 : 0, 0)};
}

/// x & y, x | y and x ^ y.
inline IntegerInterval of_bits(const IntegerInterval& x, const IntegerInterval& y, bool is_and) {
  if (is_and && x.least >= 0 && y.least >= 0) return {0, std::min(x.greatest, y.greatest)};
  if (is_and && (x.least >= 0 || y.least >= 0)) return {0, x.least >= 0 ? x.greatest : y.greatest};
  const auto of_number = [](std::int64_t one) {
    return static_cast<int>(std::bit_width(static_cast<std::uint64_t>(one < 0 ? ~one : one)));
  };
  const int bits = std::max({of_number(x.least), of_number(x.greatest), of_number(y.least), of_number(y.greatest)});
  if (bits > 62) return kAnyI64;
  const std::int64_t end = std::int64_t{1} << bits;
  return {x.least >= 0 && y.least >= 0 ? 0 : -end, end - 1};
}

/// x << y and x >> y, as torch's: a count outside of 0 to 63 moves every bit out.
inline IntegerInterval shifted_left(const IntegerInterval& x, const IntegerInterval& count) {
  if (x == IntegerInterval{0, 0} || count.least > 63) return {0, 0};
  if (count.least < 0 || count.greatest > 62) return kAnyI64;
  const IntegerInterval factors = {std::int64_t{1} << count.least, std::int64_t{1} << count.greatest};
  return product(x, factors);
}

inline IntegerInterval shifted_right(const IntegerInterval& x, const IntegerInterval& count) {
  if (count.is_number() && count.least >= 0) {
    const auto by = static_cast<int>(std::min<std::int64_t>(count.least, 63));
    return {x.least >> by, x.greatest >> by};
  }
  return {std::min<std::int64_t>(x.least, x.least < 0 ? -1 : 0), std::max<std::int64_t>(x.greatest, 0)};
}

}  // namespace heddle::expr
