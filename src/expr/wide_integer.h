// Integers of 64 bits as expressions: a pair of i32, whose operations wrap modulo 2^64.
#pragma once

#include <cstdint>

#include "heddle/expr.h"

namespace heddle::expr {

/// high * 2^32 + low, where low counts as unsigned.
struct WideInteger {
  Expr low, high;

  /// An i32 with its sign.
  static WideInteger of(const Expr& narrow);
  static WideInteger constant(std::int64_t value);
};

WideInteger operator+(const WideInteger& x, const WideInteger& y);
WideInteger operator-(const WideInteger& x, const WideInteger& y);
WideInteger operator-(const WideInteger& x);
WideInteger operator*(const WideInteger& x, const WideInteger& y);
WideInteger operator&(const WideInteger& x, const WideInteger& y);
WideInteger operator|(const WideInteger& x, const WideInteger& y);
WideInteger operator^(const WideInteger& x, const WideInteger& y);
WideInteger operator~(const WideInteger& x);
WideInteger where(const Expr& condition, const WideInteger& yes, const WideInteger& no);

/// By 0 to 63 bits.
WideInteger shifted_left(const WideInteger& x, int count);
/// By 0 to 63 bits, with copies of the sign.
WideInteger shifted_right(const WideInteger& x, int count);
/// By an i32: a count outside of 0 to 63 moves every bit out, as torch's.
WideInteger shifted_left(const WideInteger& x, const Expr& count);
WideInteger shifted_right(const WideInteger& x, const Expr& count);

Expr is_negative(const WideInteger& x);
Expr is_less(const WideInteger& x, const WideInteger& y);
Expr is_equal(const WideInteger& x, const WideInteger& y);

/// The nearest f32, or the one beside it: rounded twice.
Expr real_of(const WideInteger& x);
/// The i32 that is nearest.
Expr saturated(const WideInteger& x);

/// x // y and x % y, toward minus infinity.
struct Quotient {
  WideInteger quotient, remainder;
};
/// `bits`: how many |x| has at most. `most`: the greatest |divisor|, below 2^31. By 0 both are 0.
Quotient divided(const WideInteger& x, int bits, const Expr& divisor, std::int64_t most);
/// `bits`: how many |x| has at most, up to 62. `least_bits`: how many |divisor| has at least, from 1 on.
Quotient divided(const WideInteger& x, int bits, const WideInteger& divisor, int least_bits);

}  // namespace heddle::expr
