#include "expr/wide_integer.h"

#include <algorithm>
#include <bit>
#include <limits>

namespace heddle::expr {
namespace {

constexpr std::int32_t kLeast = std::numeric_limits<std::int32_t>::min();
constexpr std::int32_t kGreatest = std::numeric_limits<std::int32_t>::max();

Expr one_if(const Expr& condition) { return to_i32(condition); }
Expr is_less_unsigned(const Expr& x, const Expr& y) { return (x ^ Expr(kLeast)) < (y ^ Expr(kLeast)); }
/// x >> count with zeros in front, for counts of 1 to 31.
Expr shifted_right_unsigned(const Expr& x, int count) {
  return (x >> Expr(count)) & Expr(static_cast<std::int32_t>((1U << (32U - static_cast<unsigned>(count))) - 1U));
}

/// The upper 32 bits of a product of unsigned numbers, from products of halves.
Expr high_of_product(const Expr& x, const Expr& y) {
  const Expr half(0xffff);
  const Expr x_low = x & half, x_high = shifted_right_unsigned(x, 16);
  const Expr y_low = y & half, y_high = shifted_right_unsigned(y, 16);
  const Expr crossed = x_high * y_low + shifted_right_unsigned(x_low * y_low, 16);  // at most (2^16 - 1) 2^16: no carry
  const Expr middle = x_low * y_high + (crossed & half);
  return x_high * y_high + shifted_right_unsigned(crossed, 16) + shifted_right_unsigned(middle, 16);
}

/// where() for each bit of the count.
template <class Shift>
WideInteger shifted_by_bits(const WideInteger& x, const Expr& count, const Shift& shift) {
  WideInteger made = x;
  for (int bit = 0; bit < 6; ++bit) made = where((count & Expr(1 << bit)) != Expr(0), shift(made, 1 << bit), made);
  return made;
}
Expr is_outside(const Expr& count) { return count < Expr(0) || count > Expr(63); }

/// One step of a long division: the rest, below `divisor`, with `width` more bits behind it.
struct Step {
  Expr digit, rest;
};
Step step_of(const Expr& rest, const Expr& bits, int width, const Expr& divisor) {
  if (width > 0) {
    const Expr more = (rest << Expr(width)) | bits;
    const Expr digit = floor_div(more, divisor);
    return {digit, more - digit * divisor};
  }
  const Expr beyond = rest - (divisor - rest) + bits;  // 2 * rest + bit - divisor, of which no part leaves i32
  return {one_if(beyond >= Expr(0)), where(beyond >= Expr(0), beyond, beyond + divisor)};
}

}  // namespace

WideInteger WideInteger::of(const Expr& narrow) { return {narrow, narrow >> Expr(31)}; }

WideInteger WideInteger::constant(std::int64_t value) {
  return {Expr(static_cast<std::int32_t>(static_cast<std::uint32_t>(value))),
          Expr(static_cast<std::int32_t>(value >> 32))};
}

WideInteger operator+(const WideInteger& x, const WideInteger& y) {
  const Expr low = x.low + y.low;
  return {low, x.high + y.high + one_if(is_less_unsigned(low, x.low))};
}
WideInteger operator-(const WideInteger& x, const WideInteger& y) {
  return {x.low - y.low, x.high - y.high - one_if(is_less_unsigned(x.low, y.low))};
}
WideInteger operator-(const WideInteger& x) { return {-x.low, ~x.high + one_if(x.low == Expr(0))}; }
WideInteger operator*(const WideInteger& x, const WideInteger& y) {
  return {x.low * y.low, high_of_product(x.low, y.low) + x.high * y.low + x.low * y.high};
}
WideInteger operator&(const WideInteger& x, const WideInteger& y) { return {x.low & y.low, x.high & y.high}; }
WideInteger operator|(const WideInteger& x, const WideInteger& y) { return {x.low | y.low, x.high | y.high}; }
WideInteger operator^(const WideInteger& x, const WideInteger& y) { return {x.low ^ y.low, x.high ^ y.high}; }
WideInteger operator~(const WideInteger& x) { return {~x.low, ~x.high}; }
WideInteger where(const Expr& condition, const WideInteger& yes, const WideInteger& no) {
  return {heddle::where(condition, yes.low, no.low), heddle::where(condition, yes.high, no.high)};
}

WideInteger shifted_left(const WideInteger& x, int count) {
  if (count == 0) return x;
  if (count >= 32) return {Expr(0), x.low << Expr(count - 32)};
  return {x.low << Expr(count), (x.high << Expr(count)) | shifted_right_unsigned(x.low, 32 - count)};
}
WideInteger shifted_right(const WideInteger& x, int count) {
  if (count == 0) return x;
  if (count >= 32) return {x.high >> Expr(count - 32), x.high >> Expr(31)};
  return {shifted_right_unsigned(x.low, count) | (x.high << Expr(32 - count)), x.high >> Expr(count)};
}
WideInteger shifted_left(const WideInteger& x, const Expr& count) {
  const auto shift = [](const WideInteger& one, int by) { return shifted_left(one, by); };
  return where(is_outside(count), WideInteger::constant(0), shifted_by_bits(x, count, shift));
}
WideInteger shifted_right(const WideInteger& x, const Expr& count) {
  const auto shift = [](const WideInteger& one, int by) { return shifted_right(one, by); };
  return where(is_outside(count), WideInteger{x.high >> Expr(31), x.high >> Expr(31)},
               shifted_by_bits(x, count, shift));
}

Expr is_negative(const WideInteger& x) { return x.high < Expr(0); }
Expr is_less(const WideInteger& x, const WideInteger& y) {
  return x.high < y.high || (x.high == y.high && is_less_unsigned(x.low, y.low));
}
Expr is_equal(const WideInteger& x, const WideInteger& y) { return x.low == y.low && x.high == y.high; }

Expr real_of(const WideInteger& x) {
  constexpr double kScale = 4294967296.0;
  const Expr low = to_f32(x.low), unsigned_low = heddle::where(x.low < Expr(0), low + kScale, low);
  return heddle::where(x.high == x.low >> Expr(31), low, to_f32(x.high) * kScale + unsigned_low);
}
Expr saturated(const WideInteger& x) {
  const Expr end = heddle::where(x.high < Expr(0), Expr(kLeast), Expr(kGreatest));
  return heddle::where(x.high == x.low >> Expr(31), x.low, end);
}

Quotient divided(const WideInteger& x, int bits, const Expr& divisor, std::int64_t most) {
  const auto greatest = static_cast<std::uint64_t>(std::max<std::int64_t>(most, 1));
  const int width = std::min(16, 31 - static_cast<int>(std::bit_width(greatest)));
  const Expr by = max(abs(divisor), Expr(1));
  const Expr is_below = is_negative(x) ^ (divisor < Expr(0));
  const WideInteger magnitude = where(is_negative(x), -x, x);
  WideInteger quotient = WideInteger::constant(0);
  Expr rest(0);
  const int taken = std::max(width, 1);
  for (int place = (std::max(bits, 1) - 1) / taken * taken; place >= 0; place -= taken) {
    const int width_here = std::min(taken, 64 - place);
    const Expr digit = shifted_right(magnitude, place).low & Expr((1 << width_here) - 1);
    const Step step = step_of(rest, digit, width, by);
    quotient = shifted_left(quotient, taken);
    quotient.low = quotient.low | step.digit;
    rest = step.rest;
  }
  const Expr leaves = rest != Expr(0);
  const WideInteger below = -quotient - WideInteger::of(one_if(leaves));
  const Expr remainder = heddle::where(is_below && leaves, by - rest, rest);
  const Expr by_zero = divisor == Expr(0);
  return {where(by_zero, WideInteger::constant(0), where(is_below, below, quotient)),
          WideInteger::of(heddle::where(by_zero, Expr(0), heddle::where(divisor < Expr(0), -remainder, remainder)))};
}

Quotient divided(const WideInteger& x, int bits, const WideInteger& divisor, int least_bits) {
  const WideInteger by = where(is_negative(divisor), -divisor, divisor);
  const Expr is_below = is_negative(x) ^ is_negative(divisor);
  WideInteger rest = where(is_negative(x), -x, x), quotient = WideInteger::constant(0);
  for (int place = bits - least_bits; place >= 0; --place) {
    const WideInteger taken = shifted_left(by, place);
    const Expr fits = shifted_right(taken, place).high == by.high && !is_negative(taken) && !is_less(rest, taken);
    rest = where(fits, rest - taken, rest);
    quotient = shifted_left(quotient, 1);
    quotient.low = quotient.low | one_if(fits);
  }
  const Expr leaves = !is_equal(rest, WideInteger::constant(0));
  const WideInteger below = -quotient - WideInteger::of(one_if(leaves));
  const WideInteger remainder = where(is_below && leaves, by - rest, rest);
  return {where(is_below, below, quotient), where(is_negative(divisor), -remainder, remainder)};
}

}  // namespace heddle::expr
