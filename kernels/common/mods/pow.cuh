// x^y. The compiler's powf errs by up to 4 ulp, which is more than ops.def allows. Its pow of doubles is a function
// call of much more work. So x^y is 2^(y log2 |x|), computed in double to some 2^-33 and rounded once, with the edges
// of C99.
#pragma once

#include "mods/instructions.cuh"

namespace heddle::ops {

/// log2 of a positive, finite x, a float in value: to 2^-38 of it.
__device__ __forceinline__ double log2_of_float(double x) {
  // x = m 2^e with m in [sqrt(1/2), sqrt(2)).
  constexpr long long kSqrtHalf = 0x3FE6A09E667F3BCDLL, kMantissa = 0x000FFFFFFFFFFFFFLL;
  const long long bits = __double_as_longlong(x);
  const long long above = bits - kSqrtHalf;
  const int exponent = static_cast<int>(above >> 52);
  const double m = __longlong_as_double((above & kMantissa) + kSqrtHalf);
  // log m = 2 atanh((m - 1) / (m + 1)); the quotient by one Newton step from a float's reciprocal.
  const double denominator = m + 1;
  const double near = static_cast<double>(reciprocal_near(__double2float_rn(denominator)));
  const double s = (m - 1) * __fma_rn(near, __fma_rn(-denominator, near, 1.0), near);
  const double square = s * s;
  double series = 1.0 / 15;
  series = __fma_rn(series, square, 1.0 / 13);
  series = __fma_rn(series, square, 1.0 / 11);
  series = __fma_rn(series, square, 1.0 / 9);
  series = __fma_rn(series, square, 1.0 / 7);
  series = __fma_rn(series, square, 1.0 / 5);
  series = __fma_rn(series, square, 1.0 / 3);
  series = __fma_rn(series, square, 1.0);
  constexpr double kTwoOverLn2 = 2.8853900817779268147;
  return __fma_rn(s * series, kTwoOverLn2, static_cast<double>(exponent));
}

/// 2^t for -200 <= t <= 200.
__device__ __forceinline__ double exp2_of_double(double t) {
  const double whole = rint(t), rest = t - whole;  // |rest| <= 1/2
  // The coefficients are ln(2)^k / k!.
  double series = 1.0178086009239699728e-7;
  series = __fma_rn(series, rest, 1.3215486790144309488e-6);
  series = __fma_rn(series, rest, 1.5252733804059840280e-5);
  series = __fma_rn(series, rest, 1.5403530393381609954e-4);
  series = __fma_rn(series, rest, 1.3333558146428443423e-3);
  series = __fma_rn(series, rest, 9.6181291076284771620e-3);
  series = __fma_rn(series, rest, 5.5504108664821579953e-2);
  series = __fma_rn(series, rest, 2.4022650695910071233e-1);
  series = __fma_rn(series, rest, 6.9314718055994530942e-1);
  series = __fma_rn(series, rest, 1.0);
  return series * __longlong_as_double((static_cast<long long>(whole) + 1023) << 52);
}

__device__ __forceinline__ float pow(float x, float y) {
  if (x == 1.0F || y == 0.0F) return 1.0F;  // whatever the other is
  if (x != x || y != y) return x + y;
  const float infinity = __uint_as_float(0x7F800000U), size = fabsf(x);
  const double base = size == 0.0F       ? -static_cast<double>(infinity)
                      : size == infinity ? static_cast<double>(infinity)
                                         : log2_of_float(static_cast<double>(size));
  // Beyond 2^200 is infinity, and below 2^-200 is 0. |x| = 1 and an infinite y: 1.
  const double power = size == 1.0F ? 0.0 : static_cast<double>(y) * base;
  const double bounded = power > 200 ? 200 : power < -200 ? -200 : power;
  const float result = __double2float_rn(exp2_of_double(bounded));
  if ((__float_as_uint(x) >> 31) == 0) return result;
  const bool whole = floorf(y) == y;
  if (!whole && x < 0 && size < infinity) return __uint_as_float(0x7FC00000U);
  // From 2^24 on every float is even.
  const bool odd = whole && fabsf(y) < 16777216.0F && (__float2int_rz(y) & 1) != 0;
  return odd ? -result : result;
}

}  // namespace heddle::ops
