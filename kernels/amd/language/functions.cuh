// The functions of reals that CUDA's compiler brings and AMD's, without its library, does not: f32 within the errors that
// src/expr/ops.def allows, most of them through f64; exp and log of f64 to 3 ulp. Plain C++ but for a few instructions,
// so that tests run them on the host too.
#pragma once

#include "portable/amd_instructions.cuh"

namespace heddle::amd {

/// x + y and its like, rounded once whatever stands around it.
__device__ __forceinline__ float add_f32(float x, float y) {
#pragma clang fp contract(off)
  return x + y;
}
__device__ __forceinline__ float sub_f32(float x, float y) {
#pragma clang fp contract(off)
  return x - y;
}
__device__ __forceinline__ float mul_f32(float x, float y) {
#pragma clang fp contract(off)
  return x * y;
}
__device__ __forceinline__ float div_f32(float x, float y) { return x / y; }
__device__ __forceinline__ double add_f64(double x, double y) {
#pragma clang fp contract(off)
  return x + y;
}
__device__ __forceinline__ double sub_f64(double x, double y) {
#pragma clang fp contract(off)
  return x - y;
}
__device__ __forceinline__ double mul_f64(double x, double y) {
#pragma clang fp contract(off)
  return x * y;
}
__device__ __forceinline__ double div_f64(double x, double y) { return x / y; }

/// Truncates, saturates, NaN gives 0.
__device__ __forceinline__ int saturated_int(float x) {
  if (x >= 2147483648.0F) return 2147483647;
  if (x < -2147483648.0F) return -2147483647 - 1;
  return x == x ? static_cast<int>(x) : 0;
}
__device__ __forceinline__ float toward_zero(double x) {
  const float near = static_cast<float>(x);
  const bool past = __builtin_fabs(static_cast<double>(near)) > __builtin_fabs(x);
  return past ? __builtin_bit_cast(float, __builtin_bit_cast(unsigned, near) - 1) : near;
}

/// e^r 2^n for |r| <= ln(2) / 2.
__device__ __forceinline__ double exp_of_rest(double r, int n) {
  constexpr double kOver[] = {1.0,      1.0,       1.0 / 2,   1.0 / 6,     1.0 / 24,     1.0 / 120,      1.0 / 720,
                              1.0 / 5040, 1.0 / 40320, 1.0 / 362880, 1.0 / 3628800, 1.0 / 39916800, 1.0 / 479001600,
                              1.0 / 6227020800};
  double sum = kOver[13];
#pragma unroll
  for (int i = 12; i >= 0; --i) sum = __builtin_fma(sum, r, kOver[i]);
  return ldexp_f64(sum, n);
}
inline constexpr double kLn2High = 0x1.62e42feep-1, kLn2Low = 0x1.a39ef35793c76p-33, kLn2 = 0x1.62e42fefa39efp-1;
inline constexpr double kInfinity = __builtin_inf(), kNan = __builtin_nan("");

__device__ __forceinline__ double exp_f64(double x) {
  if (x != x) return x;
  if (x > 709.8) return kInfinity;
  if (x < -745.2) return 0;
  const double whole = __builtin_rint(x / kLn2);
  return exp_of_rest(__builtin_fma(whole, -kLn2Low, __builtin_fma(whole, -kLn2High, x)), static_cast<int>(whole));
}
__device__ __forceinline__ double exp2_f64(double x) {
  if (x != x) return x;
  if (x >= 1024) return kInfinity;
  if (x < -1075) return 0;
  const double whole = __builtin_rint(x);
  return exp_of_rest((x - whole) * kLn2, static_cast<int>(whole));
}

/// log x = log(1 + above) = exponent ln 2 + `log`, for a positive normal x.
struct LogParts {
  double log;
  int exponent;
};
template <int kTerms>
__device__ __forceinline__ LogParts log_parts(double x) {
  // x = m 2^e with m in [sqrt(1/2), sqrt(2)): log m = 2 atanh((m - 1) / (m + 1)).
  constexpr long long kSqrtHalf = 0x3FE6A09E667F3BCDLL, kMantissa = 0x000FFFFFFFFFFFFFLL;
  const long long above = __builtin_bit_cast(long long, x) - kSqrtHalf;
  const double m = __builtin_bit_cast(double, (above & kMantissa) + kSqrtHalf);
  const double s = (m - 1) / (m + 1), square = s * s;
  double sum = 1.0 / (2 * kTerms + 1);
#pragma unroll
  for (int i = kTerms - 1; i >= 1; --i) sum = __builtin_fma(sum, square, 1.0 / (2 * i + 1));
  return {__builtin_fma(2 * s * square, sum, 2 * s), static_cast<int>(above >> 52)};
}
/// `of(parts)` of a positive finite x, with the edges of C99.
template <int kTerms, class Of>
__device__ __forceinline__ double log_with_edges(double x, Of&& of) {
  if (x != x || x < 0) return kNan;
  if (x == 0) return -kInfinity;
  if (x == kInfinity) return x;
  const bool small = x < 0x1p-1022;
  LogParts parts = log_parts<kTerms>(small ? x * 0x1p54 : x);
  if (small) parts.exponent -= 54;
  return of(parts);
}
template <int kTerms>
__device__ __forceinline__ double natural_log(double x) {
  return log_with_edges<kTerms>(x, [](const LogParts& parts) {
    return __builtin_fma(parts.exponent, kLn2High, __builtin_fma(parts.exponent, kLn2Low, parts.log));
  });
}
__device__ __forceinline__ double log_f64(double x) { return natural_log<12>(x); }
__device__ __forceinline__ double log2_f64(double x) {
  return log_with_edges<12>(
      x, [](const LogParts& parts) { return __builtin_fma(parts.log, 1 / kLn2, static_cast<double>(parts.exponent)); });
}

// ---- f32

/// 2^n e^r by f32 alone.
__device__ __forceinline__ float exp_near(float r, float whole) {
  float sum = 1.0F / 5040;
  sum = __builtin_fmaf(sum, r, 1.0F / 720);
  sum = __builtin_fmaf(sum, r, 1.0F / 120);
  sum = __builtin_fmaf(sum, r, 1.0F / 24);
  sum = __builtin_fmaf(sum, r, 1.0F / 6);
  sum = __builtin_fmaf(sum, r, 0.5F);
  sum = __builtin_fmaf(sum, r, 1.0F);
  sum = __builtin_fmaf(sum, r, 1.0F);
  return ldexp_f32(sum, static_cast<int>(whole));
}
__device__ __forceinline__ float exp_f32(float x) {
  if (x != x) return x;
  const float bounded = x > 90.0F ? 90.0F : x < -105.0F ? -105.0F : x;  // beyond is infinity, and 0
  const float whole = __builtin_rintf(bounded * 1.44269504088896341F);
  // The first part of ln 2 has few bits: its product is exact.
  return exp_near(__builtin_fmaf(whole, -3.1946184945309415e-05F, __builtin_fmaf(whole, -0.693115234375F, bounded)),
                  whole);
}
__device__ __forceinline__ float exp2_f32(float x) {
  if (x != x) return x;
  const float bounded = x > 130.0F ? 130.0F : x < -151.0F ? -151.0F : x;
  const float whole = __builtin_rintf(bounded);
  return exp_near((bounded - whole) * 0.693147180559945309F, whole);
}
__device__ __forceinline__ float expm1_f32(float x) {
  const double wide = x;
  if (__builtin_fabs(wide) < 0.5) {
    double sum = 1.0 / 39916800;
    double over = 1.0 / 3628800;
#pragma unroll
    for (int i = 10; i >= 1; --i) sum = __builtin_fma(sum, wide, over), over *= i;
    return static_cast<float>(sum * wide);
  }
  return static_cast<float>(exp_f64(wide) - 1);
}
__device__ __forceinline__ float log_f32(float x) { return static_cast<float>(natural_log<7>(x)); }
__device__ __forceinline__ float log2_f32(float x) {
  return static_cast<float>(log_with_edges<7>(x, [](const LogParts& parts) {
    return __builtin_fma(parts.log, 1 / kLn2, static_cast<double>(parts.exponent));
  }));
}
/// log(1 + x), and what rounding took from 1 + x.
__device__ __forceinline__ float log1p_f32(float x) {
  const double wide = x, sum = 1 + wide;
  if (!(sum > 0) || sum == kInfinity) return static_cast<float>(natural_log<7>(sum));
  return static_cast<float>(natural_log<7>(sum) - ((sum - 1) - wide) / sum);
}
__device__ __forceinline__ float rsqrt_f32(float x) {
  const bool small = x < 0x1p-100F && x > 0;
  const float near = reciprocal_root(small ? x * 0x1p40F : x);
  return small ? near * 0x1p20F : near;
}
/// The remainder of x after whole multiples of y, toward 0: exact.
__device__ __forceinline__ float mod_f32(float x, float y) {
  const double size = __builtin_fabs(static_cast<double>(y)), infinity = __builtin_inf();
  double left = __builtin_fabs(static_cast<double>(x));
  if (x != x || y != y || left == infinity || size == 0) return __builtin_nanf("");
  if (size == infinity) return x;
  while (left >= size) {
    // A multiple of y by a power of two, of which at most 2^24 are in what is left: a product of 24 and 24 bits.
    const int apart = exponent_of(left) - exponent_of(size) - 23;
    const double step = ldexp_f64(size, apart < 0 ? 0 : apart);
    left = __builtin_fma(-__builtin_trunc(left / step), step, left);
    if (left < 0) left += step;
  }
  return __builtin_copysignf(static_cast<float>(left), x);
}

/// To 2 ulp: by an odd polynomial near 0, else 1 - 2 / (1 + e^2x).
__device__ __forceinline__ float tanh_f32(float x) {
  const float size = __builtin_fabsf(x), u = x * x;
  float near = 0.002214902756091387F;
  near = __builtin_fmaf(near, u, -0.008272456750032237F);
  near = __builtin_fmaf(near, u, 0.021746187097585336F);
  near = __builtin_fmaf(near, u, -0.0539563493986977F);
  near = __builtin_fmaf(near, u, 0.13333290745815607F);
  near = __builtin_fmaf(near, u, -0.3333333308402078F);
  near = __builtin_fmaf(near * u, x, x);
  const float far = __builtin_fmaf(-2.0F, 1.0F / (1.0F + exp_f32(2 * size)), 1.0F);
  return size < 0.65F ? near : __builtin_copysignf(far, x);  // of NaN: NaN
}

/// x less a multiple of pi / 2, which is `quarter` modulo 4: |rest| <= pi / 4.
struct Turn {
  double rest;
  int quarter;
};
/// For |x| >= 2^26, from the bits of 2 / pi that count: of x = m 2^e those whose products with m are neither whole
/// turns nor too small. Their 96 bits times m, modulo 2^96: two bits of quarters, then the fraction.
__device__ __forceinline__ Turn turn_of_large(float x) {
  constexpr unsigned kTwoOverPi[] = {0xa2f9836eU, 0x4e441529U, 0xfc2757d1U, 0xf534ddc0U,
                                     0xdb629599U, 0x3c439041U, 0xfe5163abU};
  const unsigned bits = __builtin_bit_cast(unsigned, x) & 0x7fffffffU;
  const unsigned long long m = (bits & 0x7fffffU) | 0x800000U;
  const int skipped = static_cast<int>(bits >> 23) - 150 - 2, word = skipped / 32, shift = skipped % 32;
  unsigned part[4] = {};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int w = 0; w < 7; ++w) part[i] = w == word + i ? kTwoOverPi[w] : part[i];
  }
  unsigned window[3];
#pragma unroll
  for (int i = 0; i < 3; ++i) window[i] = shift == 0 ? part[i] : part[i] << shift | part[i + 1] >> (32 - shift);
  const unsigned long long low = m * window[2], middle = m * window[1] + (low >> 32);
  const unsigned long long top = (m * window[0] << 32) + middle;
  const unsigned long long quarter = (top + (1ULL << 61)) >> 62;
  const auto fraction = static_cast<long long>(top - (quarter << 62));
  const double high = static_cast<double>(static_cast<int>(fraction >> 32)) * 0x1p-30;
  const double rest = high + static_cast<double>(static_cast<unsigned>(fraction)) * 0x1p-62;
  const bool negative = x < 0;
  const int turned = static_cast<int>(quarter & 3);
  return {(negative ? -rest : rest) * 0x1.921fb54442d18p+0, negative ? -turned & 3 : turned};
}
__device__ __forceinline__ Turn turn_of(float x) {
  if (__builtin_fabsf(x) >= 0x1p26F) return turn_of_large(x);
  const double whole = __builtin_rint(x * 0x1.45f306dc9c883p-1);
  const double rest = __builtin_fma(whole, -0x1.1a62633145c07p-54, __builtin_fma(whole, -0x1.921fb54442d18p+0, x));
  return {rest, static_cast<int>(whole) & 3};
}
__device__ __forceinline__ double sine_near(double r) {
  const double u = r * r;
  double sum = -1.0 / 39916800;
  sum = __builtin_fma(sum, u, 1.0 / 362880);
  sum = __builtin_fma(sum, u, -1.0 / 5040);
  sum = __builtin_fma(sum, u, 1.0 / 120);
  sum = __builtin_fma(sum, u, -1.0 / 6);
  return __builtin_fma(sum * u, r, r);
}
__device__ __forceinline__ double cosine_near(double r) {
  const double u = r * r;
  double sum = 1.0 / 479001600;
  sum = __builtin_fma(sum, u, -1.0 / 3628800);
  sum = __builtin_fma(sum, u, 1.0 / 40320);
  sum = __builtin_fma(sum, u, -1.0 / 720);
  sum = __builtin_fma(sum, u, 1.0 / 24);
  sum = __builtin_fma(sum, u, -0.5);
  return __builtin_fma(sum, u, 1.0);
}
__device__ __forceinline__ bool has_turn(float x) { return __builtin_fabsf(x) < __builtin_inff(); }
__device__ __forceinline__ float sin_f32(float x) {
  if (!has_turn(x)) return __builtin_nanf("");
  const Turn turn = turn_of(x);
  const double y = (turn.quarter & 1) != 0 ? cosine_near(turn.rest) : sine_near(turn.rest);
  return static_cast<float>((turn.quarter & 2) != 0 ? -y : y);
}
__device__ __forceinline__ float cos_f32(float x) {
  if (!has_turn(x)) return __builtin_nanf("");
  const Turn turn = turn_of(x);
  const double y = (turn.quarter & 1) != 0 ? sine_near(turn.rest) : cosine_near(turn.rest);
  return static_cast<float>(((turn.quarter + 1) & 2) != 0 ? -y : y);
}
__device__ __forceinline__ float tan_f32(float x) {
  if (!has_turn(x)) return __builtin_nanf("");
  const Turn turn = turn_of(x);
  const double sine = sine_near(turn.rest), cosine = cosine_near(turn.rest);
  return static_cast<float>((turn.quarter & 1) != 0 ? -cosine / sine : sine / cosine);
}
__device__ __forceinline__ float atan_f32(float x) {
  if (x != x) return x;
  constexpr double kEighth = 0.41421356237309503, kQuarterPi = 0.78539816339744828, kHalfPi = 1.5707963267948966;
  const double size = __builtin_fabs(static_cast<double>(x));
  const bool large = size > 1;
  const double below = large ? 1 / size : size;
  const bool middle = below > kEighth;  // tan(pi / 8)
  const double t = middle ? (below - 1) / (below + 1) : below, u = t * t;
  double sum = 1.0 / 25;
#pragma unroll
  for (int i = 11; i >= 1; --i) sum = __builtin_fma(sum, -u, 1.0 / (2 * i + 1));
  const double near = __builtin_fma(sum * -u, t, t) + (middle ? kQuarterPi : 0);
  return __builtin_copysignf(static_cast<float>(large ? kHalfPi - near : near), x);
}
/// By its series below 1; above, 1 - 2^p with a polynomial p for log2(erfc), to 5e-10.
__device__ __forceinline__ float erf_f32(float x) {
  if (x != x) return x;
  const double size = __builtin_fabs(static_cast<double>(x)), u = size * size;
  if (size >= 4) return __builtin_copysignf(1.0F, x);
  double result;
  if (size < 1) {
    // The sum of (-u)^k / (k! (2 k + 1)).
    double sum = 0, over = 1.0 / 6227020800;
#pragma unroll
    for (int k = 13; k >= 0; --k) sum = __builtin_fma(sum, -u, over / (2 * k + 1)), over *= k;
    result = sum * size * 1.1283791670955126;
  } else {
    constexpr double kPower[] = {0.00046186160477468263, -1.6305821716078956,  -0.9115323110918655,
                                 -0.15881198995815682,   0.03811764199763883,  -0.006866646007277157,
                                 0.0008610085248043694,  -6.644771077619582e-05, 2.36191027797e-06};
    double power = kPower[8];
#pragma unroll
    for (int i = 7; i >= 0; --i) power = __builtin_fma(power, size, kPower[i]);
    result = 1 - exp2_f64(power);
  }
  return __builtin_copysignf(static_cast<float>(result), x);
}
/// e^(-x^2) times a polynomial in 3 / (3 + x) for erfc(x) e^(x^2), to 3e-9 for 0 <= x <= 10.3. Beyond 10.06 is 0.
__device__ __forceinline__ float erfc_f32(float x) {
  if (x != x) return x;
  const double size = __builtin_fabs(static_cast<double>(x));
  if (size > 10.3) return x < 0 ? 2.0F : 0.0F;
  constexpr double kScaled[] = {0.1880368896421663,    0.18866407509912697, 0.17160722373170556, 0.1913037894723801,
                                0.00047369517626966867, 0.39911316287425824, -0.4359569312352715, 0.5318552730145569,
                                -0.2905162624707477,   0.05541908249276172};
  const double t = 3 / (3 + size);
  double scaled = kScaled[9];
#pragma unroll
  for (int i = 8; i >= 0; --i) scaled = __builtin_fma(scaled, t, kScaled[i]);
  const double above = scaled * t * exp_f64(-size * size);
  return static_cast<float>(x < 0 ? 2 - above : above);
}

}  // namespace heddle::amd
