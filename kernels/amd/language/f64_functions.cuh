// The functions of f64 that mods call, where AMD's compiler has no library: within the errors that src/expr/ops.def
// allows, with the edges of C99; those of angles are in f64_angles.cuh. Numbers that f64 is too coarse for are sums of
// two (Two). Plain C++ but for ldexp, so that tests run them on the host too.
//
// Every function forbids contraction: a product that is rounded may not become part of another operation.
#pragma once

#include "portable/amd_instructions.cuh"

namespace heddle::amd::f64 {

inline constexpr double kInfinity = __builtin_inf(), kNan = __builtin_nan("");

/// high + low, |low| small beside |high|.
struct Two {
  double high, low;
};
__device__ __forceinline__ Two sum_of(double x, double y) {
#pragma clang fp contract(off)
  const double sum = x + y, own = sum - x;
  return {sum, (x - (sum - own)) + (y - own)};
}
/// For |x| >= |y|.
__device__ __forceinline__ Two sum_in_order(double x, double y) {
#pragma clang fp contract(off)
  const double sum = x + y;
  return {sum, y - (sum - x)};
}
__device__ __forceinline__ Two product_of(double x, double y) {
#pragma clang fp contract(off)
  const double product = x * y;
  return {product, __builtin_fma(x, y, -product)};
}
/// The product of x and y, without that of both lows.
__device__ __forceinline__ Two product_of(const Two& x, const Two& y) {
#pragma clang fp contract(off)
  Two product = product_of(x.high, y.high);
  product.low += __builtin_fma(x.high, y.low, x.low * y.high);
  return product;
}
/// x / y; a quotient in two words.
__device__ __forceinline__ Two quotient_of(double x, const Two& y) {
#pragma clang fp contract(off)
  const double quotient = x / y.high;
  return {quotient, (__builtin_fma(-quotient, y.high, x) - quotient * y.low) / y.high};
}

// kLn2High has 32 bits: its products with exponents are exact.
inline constexpr double kLn2High = 0x1.62e42feep-1, kLn2Low = 0x1.a39ef35793c76p-33;
inline constexpr Two kLn2 = {0x1.62e42fefa39efp-1, 0x1.abc9e3b39803fp-56},
                     kLog2E = {0x1.71547652b82fep+0, 0x1.777d0ffda0d24p-56};

// ---- powers

/// e^r for |r| <= 0.35, whose low is half an ulp of its high at most.
__device__ __forceinline__ Two exp_near(const Two& r) {
#pragma clang fp contract(off)
  constexpr double kOver[] = {1.0 / 6,        1.0 / 24,        1.0 / 120,       1.0 / 720,
                              1.0 / 5040,     1.0 / 40320,     1.0 / 362880,    1.0 / 3628800,
                              1.0 / 39916800, 1.0 / 479001600, 1.0 / 6227020800};
  const double x = r.high, square = x * x;
  double series = kOver[10];
#pragma unroll
  for (int i = 9; i >= 0; --i) series = __builtin_fma(series, x, kOver[i]);
  const double rest = __builtin_fma(square * x, series, 0.5 * square);
  const Two sum = sum_in_order(1, x);
  return {sum.high, sum.low + (__builtin_fma(r.low, x, r.low) + rest)};
}
/// 2^(t.high + t.low)
__device__ __forceinline__ double exp2_of(const Two& t) {
#pragma clang fp contract(off)
  if (!(t.high < 1100)) return t.high != t.high ? t.high : kInfinity;
  if (t.high < -1100) return 0;
  const double whole = __builtin_rint(t.high);
  const Two rest = product_of({t.high - whole, t.low}, kLn2), power = exp_near(sum_in_order(rest.high, rest.low));
  return ldexp_f64(power.high + power.low, static_cast<int>(whole));
}
__device__ __forceinline__ double exp2(double x) { return exp2_of({x, 0}); }

/// x less `whole` times ln 2.
__device__ __forceinline__ Two rest_of_ln2(double x, double whole) {
#pragma clang fp contract(off)
  return sum_of(__builtin_fma(-whole, kLn2High, x), -whole * kLn2Low);
}
__device__ __forceinline__ double exp(double x) {
#pragma clang fp contract(off)
  if (x != x) return x;
  if (x > 709.8) return kInfinity;
  if (x < -745.2) return 0;
  const double whole = __builtin_rint(x * kLog2E.high);
  const Two power = exp_near(rest_of_ln2(x, whole));
  return ldexp_f64(power.high + power.low, static_cast<int>(whole));
}
__device__ __forceinline__ double expm1(double x) {
#pragma clang fp contract(off)
  if (x != x || x == 0) return x;
  if (x > 709.8) return kInfinity;
  if (x < -40) return -1;
  const double whole = __builtin_rint(x * kLog2E.high);
  if (whole == 0) {
    double series = 1.0 / 6227020800, over = 1.0 / 479001600;  // the sum of x^k / (k + 2)!
#pragma unroll
    for (int k = 10; k >= 0; --k) series = __builtin_fma(series, x, over), over *= k + 2;
    return __builtin_fma(x * x, series, x);
  }
  const Two power = exp_near(rest_of_ln2(x, whole));
  const int n = static_cast<int>(whole);
  const Two less = sum_of(ldexp_f64(power.high, n), -1);
  return less.high == kInfinity ? kInfinity : less.high + (less.low + ldexp_f64(power.low, n));
}
/// By e^2x - 1. From 20 on it is 1.
__device__ __forceinline__ double tanh(double x) {
#pragma clang fp contract(off)
  const double size = __builtin_fabs(x), power = expm1(2 * size);
  return __builtin_copysign(size >= 20 ? 1 : power / (power + 2), x);
}

// ---- logarithms

/// x = (1 + above) 2^exponent for a positive finite x, with 1 + above between sqrt(1/2) and sqrt(2).
struct Scaled {
  double above;
  int exponent;
};
__device__ __forceinline__ Scaled scaled(double x) {
#pragma clang fp contract(off)
  constexpr long long kSqrtHalf = 0x3FE6A09E667F3BCDLL, kMantissa = 0x000FFFFFFFFFFFFFLL;
  const bool small = x < 0x1p-1022;
  const long long over = __builtin_bit_cast(long long, small ? x * 0x1p54 : x) - kSqrtHalf;
  const double mantissa = __builtin_bit_cast(double, (over & kMantissa) + kSqrtHalf);
  return {mantissa - 1, static_cast<int>(over >> 52) - (small ? 54 : 0)};
}
/// 2 / 3 + 2 / 5 u + 2 / 7 u^2 ..., or from kFirst = 2 on from 2 / 5, for u = s^2 <= 0.0295.
template <int kFirst>
__device__ __forceinline__ double atanh_series(double u) {
  constexpr int kLast = 12;
  double series = 2.0 / (2 * kLast + 1);
#pragma unroll
  for (int k = kLast - 1; k >= kFirst; --k) series = __builtin_fma(series, u, 2.0 / (2 * k + 1));
  return series;
}
/// log((1 + above) 2^exponent) + low.
__device__ __forceinline__ double log_of(const Scaled& x, double low) {
#pragma clang fp contract(off)
  // log(1 + f) = f - (f^2 / 2 - s (f^2 / 2 + R)) with s = f / (2 + f), R = 2 / 3 s^2 + 2 / 5 s^4 + ...
  const double f = x.above, s = f / (2 + f), u = s * s, half = 0.5 * f * f, part = s * (half + u * atanh_series<1>(u));
  if (x.exponent == 0) return f - (half - (part + low));
  const double n = x.exponent;
  return n * kLn2High - ((half - (part + (n * kLn2Low + low))) - f);
}
/// Whether the logarithm of x is `edge`.
__device__ __forceinline__ bool has_edge(double x, double& edge) {
  edge = x == 0 ? -kInfinity : x == kInfinity ? x : kNan;
  return !(x > 0 && x < kInfinity);
}
__device__ __forceinline__ double log(double x) {
  double edge;
  return has_edge(x, edge) ? edge : log_of(scaled(x), 0);
}
__device__ __forceinline__ double log1p(double x) {
#pragma clang fp contract(off)
  if (__builtin_fabs(x) < 0.25) return x == 0 ? x : log_of({x, 0}, 0);
  const double sum = 1 + x;
  double edge;
  if (has_edge(sum, edge)) return edge;
  return log_of(scaled(sum), (x >= 1 ? 1 - (sum - x) : x - (sum - 1)) / sum);
}
/// log2 of a positive finite x, to some 2^-65.
__device__ __forceinline__ Two log2_of(double x) {
#pragma clang fp contract(off)
  constexpr Two kTwoThirds = {0x1.5555555555555p-1, 0x1.5555555555555p-55};
  const Scaled parts = scaled(x);
  // log(1 + f) = 2 s + 2 / 3 s^3 + s^5 (2 / 5 + ...)
  const Two s = quotient_of(parts.above, sum_in_order(2, parts.above)), u = product_of(s, s), cube = product_of(s, u),
            third = product_of(cube, kTwoThirds), top = sum_in_order(2 * s.high, third.high);
  const double rest = cube.high * u.high * atanh_series<2>(u.high);
  const Two natural = sum_in_order(top.high, top.low + (third.low + 2 * s.low + rest));
  const Two own = product_of(natural, kLog2E), whole = sum_of(parts.exponent, own.high);
  return sum_in_order(whole.high, whole.low + own.low);
}
__device__ __forceinline__ double log2(double x) {
  double edge;
  if (has_edge(x, edge)) return edge;
  return log2_of(x).high;
}
__device__ __forceinline__ double pow(double x, double y) {
#pragma clang fp contract(off)
  if (x == 1 || y == 0) return 1;  // whatever the other is
  if (x != x || y != y) return x + y;
  const double size = __builtin_fabs(x);
  Two power = {0, 0};
  if (size == 0 || size == kInfinity || __builtin_fabs(y) == kInfinity) {
    if (size != 1) power.high = (size > 1) == (y > 0) ? kInfinity : -kInfinity;
  } else {
    const Two base = log2_of(size);
    power = product_of(y, base.high);
    power.low = __builtin_fma(y, base.low, power.low);
  }
  const double result = exp2_of(power);
  if (!__builtin_signbit(x)) return result;
  const bool whole = __builtin_floor(y) == y;
  if (!whole && x < 0 && size < kInfinity) return kNan;
  // From 2^53 on every number is even.
  const bool odd = whole && __builtin_fabs(y) < 0x1p53 && __builtin_floor(0.5 * y) != 0.5 * y;
  return odd ? -result : result;
}

// ---- the error function

/// erfc(x) for 0.5 <= x: e^(-x^2) t q(t) with t = 3 / (3 + x); q by a polynomial to 2^-57. Beyond 27.3 is 0.
__device__ __forceinline__ double erfc_above(double x) {
#pragma clang fp contract(off)
  constexpr double kScaled[] = {0.34528022799783753,     0.2106052605416278,      0.10558888619070395,
                                0.04219077017535839,     0.012544893197935742,    0.002266063362037786,
                                -1.9068650544836117e-05, -0.00013614379446152107, -2.3777578301133542e-05,
                                6.279988494572539e-06,   2.531677567984777e-06,   -3.268778121802769e-07,
                                -2.389838297836126e-07,  2.6100762676521347e-08,  2.3221955927749595e-08,
                                -3.3474309423097128e-09, -2.2791182778208573e-09, 4.677706561423172e-10,
                                2.0197469819938435e-10,  -4.226570492442327e-11,  -1.1849827879026106e-11};
  if (x > 27.3) return 0;
  const Two t = quotient_of(3, sum_of(3, x)), square = product_of(x, x);
  const double z = (t.high - 0x1.e937c1a611fc6p-2 + t.low) * 0x1.5161f9add3c0dp+1;
  double scaled = kScaled[20];
#pragma unroll
  for (int i = 19; i >= 0; --i) scaled = __builtin_fma(scaled, z, kScaled[i]);
  const double whole = __builtin_rint(-square.high * kLog2E.high);
  const Two rest = rest_of_ln2(-square.high, whole), power = exp_near(sum_of(rest.high, rest.low - square.low));
  const double factor = __builtin_fma(t.high, scaled, t.low * scaled);
  // The power alone may be a subnormal number.
  return ldexp_f64(__builtin_fma(power.high, factor, power.low * factor), static_cast<int>(whole));
}
/// Its series for |x| < 1: x (2 / sqrt(pi)) (1 - x^2 / 3 + ...)
__device__ __forceinline__ double erf_near(double x) {
#pragma clang fp contract(off)
  constexpr Two kFactor = {0x1.20dd750429b6dp+0, 0x1.1ae3a914fed80p-56};
  const double u = x * x;
  // The sum of (-u)^k / (k! (2 k + 1)), k from 1 to 19.
  double sum = 0, over = 1.0 / 121645100408832000;
#pragma unroll
  for (int k = 19; k >= 1; --k) sum = (sum + over / (2 * k + 1)) * -u, over *= k;
  return __builtin_fma(x, kFactor.high, x * __builtin_fma(kFactor.high, sum, kFactor.low));
}
__device__ __forceinline__ double erf(double x) {
  if (x != x) return x;
  const double size = __builtin_fabs(x);
  return size < 1 ? erf_near(x) : __builtin_copysign(1 - erfc_above(size), x);
}
__device__ __forceinline__ double erfc(double x) {
  if (x != x) return x;
  if (__builtin_fabs(x) < 0.5) return 1 - erf_near(x);
  return x < 0 ? 2 - erfc_above(-x) : erfc_above(x);
}

// ---- roots and remainders

__device__ __forceinline__ double rsqrt(double x) { return 1 / __builtin_sqrt(x); }

/// The remainder of x after whole multiples of y, toward 0: exact. By integers, eleven bits of the quotient at a time.
__device__ __forceinline__ double fmod(double x, double y) {
  const double size = __builtin_fabs(y), of = __builtin_fabs(x);
  if (!(of < kInfinity) || size == 0 || y != y) return kNan;
  if (of < size) return x;
  const auto parts = [](double number, int& exponent) {
    const auto bits = __builtin_bit_cast(unsigned long long, number);
    const int stored = static_cast<int>(bits >> 52);
    exponent = stored == 0 ? 1 : stored;
    return (bits & 0xFFFFFFFFFFFFFULL) | (stored == 0 ? 0ULL : 1ULL << 52);
  };
  int exponent, least;
  unsigned long long left = parts(of, exponent);
  const unsigned long long divisor = parts(size, least);
  left %= divisor;
  for (int apart = exponent - least; apart > 0 && left != 0; apart -= 11) {
    left = (left << (apart < 11 ? apart : 11)) % divisor;
  }
  return __builtin_copysign(ldexp_f64(static_cast<double>(left), least - 1075), x);
}

}  // namespace heddle::amd::f64
