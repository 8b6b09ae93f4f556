// sin, cos, tan and atan of f64, as f64_functions.cuh has the others.
#pragma once

#include "language/f64_functions.cuh"

namespace heddle::amd::f64 {

inline constexpr Two kHalfPi = {0x1.921fb54442d18p+0, 0x1.1a62633145c07p-54},
                     kQuarterPi = {0x1.921fb54442d18p-1, 0x1.1a62633145c07p-55};

__extension__ using Product = unsigned __int128;

/// The words of 2 / pi from the bit on that stands `skipped` bits behind the one of weight 2^63.
struct Window {
  unsigned long long word[3];
};
__device__ __forceinline__ Window two_over_pi(int skipped) {
  constexpr unsigned long long kWords[] = {0ULL,
                                           0xa2f9836e4e441529ULL,
                                           0xfc2757d1f534ddc0ULL,
                                           0xdb6295993c439041ULL,
                                           0xfe5163abdebbc561ULL,
                                           0xb7246e3a424dd2e0ULL,
                                           0x06492eea09d1921cULL,
                                           0xfe1deb1cb129a73eULL,
                                           0xe88235f52ebb4484ULL,
                                           0xe99c7026b45f7e41ULL,
                                           0x3991d639835339f4ULL,
                                           0x9c845f8bbdf9283bULL,
                                           0x1ff897ffde05980fULL,
                                           0xef2f118b5a0a6d1fULL,
                                           0x6d367ecf27cb09b7ULL,
                                           0x4f463f669e5fea2dULL,
                                           0x7527bac7ebe5f17bULL,
                                           0x3d0739f78a5292eaULL,
                                           0x6bfb5fb11f8d5d08ULL,
                                           0x56033046fc7b6babULL,
                                           0xf0cfbc209af4361dULL};
  constexpr int kCount = sizeof(kWords) / sizeof(kWords[0]);
  const int first = skipped / 64, shift = skipped % 64;
  unsigned long long part[4] = {};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    // Chosen by comparisons: an index would put the words in memory.
#pragma unroll
    for (int w = 0; w < kCount; ++w) part[i] = w == first + i ? kWords[w] : part[i];
  }
  Window window;
#pragma unroll
  for (int i = 0; i < 3; ++i) window.word[i] = shift == 0 ? part[i] : part[i] << shift | part[i + 1] >> (64 - shift);
  return window;
}

/// x less a multiple of pi / 2, which is `quarter` modulo 4: |rest| <= pi / 4.
struct Turn {
  Two rest;
  int quarter;
};
/// From the bits of 2 / pi that count: of x = m 2^e those whose products with m are neither whole turns nor too small.
/// Their 192 bits times m, modulo 2^192: two bits of quarters, then the fraction.
__device__ __forceinline__ Turn turn_of_large(double x) {
#pragma clang fp contract(off)
  const auto bits = __builtin_bit_cast(unsigned long long, x);
  const unsigned long long m = (bits & 0xFFFFFFFFFFFFFULL) | 1ULL << 52;
  const Window window = two_over_pi(static_cast<int>(bits >> 52 & 0x7FF) - 1075 + 62);
  const Product low = static_cast<Product>(m) * window.word[2];
  const Product middle = static_cast<Product>(m) * window.word[1] + static_cast<unsigned long long>(low >> 64);
  const unsigned long long top = m * window.word[0] + static_cast<unsigned long long>(middle >> 64);
  const unsigned long long quarter = (top + (1ULL << 61)) >> 62;
  const auto fraction = static_cast<long long>(top - (quarter << 62));
  const auto below = static_cast<unsigned long long>(middle);
  const Two first = sum_of(static_cast<double>(static_cast<int>(fraction >> 32)) * 0x1p-30,
                           static_cast<double>(static_cast<unsigned>(fraction)) * 0x1p-62);
  const Two second = sum_of(first.high, static_cast<double>(static_cast<unsigned>(below >> 32)) * 0x1p-94);
  const double least = static_cast<double>(static_cast<unsigned>(below)) * 0x1p-126 +
                       static_cast<double>(static_cast<unsigned>(low >> 32)) * 0x1p-158;
  const Two turn = sum_of(second.high, first.low + second.low + least), rest = product_of(turn, kHalfPi);
  const int turned = static_cast<int>(quarter & 3);
  return x < 0 ? Turn{{-rest.high, -rest.low}, -turned & 3} : Turn{rest, turned};
}
__device__ __forceinline__ Turn turn_of(double x) {
#pragma clang fp contract(off)
  if (__builtin_fabs(x) >= 0x1p26) return turn_of_large(x);
  constexpr double kThird = -0x1.f1976b7ed8fbcp-110;  // of pi / 2, after kHalfPi
  const double whole = __builtin_rint(x * 0x1.45f306dc9c883p-1);
  const Two high = product_of(whole, kHalfPi.high), low = product_of(whole, kHalfPi.low);
  const Two first = sum_of(x, -high.high), second = sum_of(first.high, -high.low),
            third = sum_of(second.high, -low.high);
  const double least = (first.low + second.low) + third.low - low.low - whole * kThird;
  return {sum_in_order(third.high, least), static_cast<int>(whole) & 3};
}
__device__ __forceinline__ double sine_near(const Two& r) {
#pragma clang fp contract(off)
  const double x = r.high, u = x * x, cube = u * x;
  double series = 1.0 / 355687428096000;
  series = __builtin_fma(series, u, -1.0 / 1307674368000);
  series = __builtin_fma(series, u, 1.0 / 6227020800);
  series = __builtin_fma(series, u, -1.0 / 39916800);
  series = __builtin_fma(series, u, 1.0 / 362880);
  series = __builtin_fma(series, u, -1.0 / 5040);
  series = __builtin_fma(series, u, 1.0 / 120);
  return x - ((u * (0.5 * r.low - cube * series) - r.low) + cube * (1.0 / 6));
}
__device__ __forceinline__ double cosine_near(const Two& r) {
#pragma clang fp contract(off)
  const double x = r.high, u = x * x, half = 0.5 * u, near = 1 - half;
  double series = -1.0 / 6402373705728000;
  series = __builtin_fma(series, u, 1.0 / 20922789888000);
  series = __builtin_fma(series, u, -1.0 / 87178291200);
  series = __builtin_fma(series, u, 1.0 / 479001600);
  series = __builtin_fma(series, u, -1.0 / 3628800);
  series = __builtin_fma(series, u, 1.0 / 40320);
  series = __builtin_fma(series, u, -1.0 / 720);
  series = __builtin_fma(series, u, 1.0 / 24);
  return near + (((1 - near) - half) + (u * (u * series) - x * r.low));
}
__device__ __forceinline__ bool has_turn(double x) { return __builtin_fabs(x) < kInfinity; }
__device__ __forceinline__ double sin(double x) {
  if (!has_turn(x)) return kNan;
  if (x == 0) return x;
  const Turn turn = turn_of(x);
  const double y = (turn.quarter & 1) != 0 ? cosine_near(turn.rest) : sine_near(turn.rest);
  return (turn.quarter & 2) != 0 ? -y : y;
}
__device__ __forceinline__ double cos(double x) {
  if (!has_turn(x)) return kNan;
  const Turn turn = turn_of(x);
  const double y = (turn.quarter & 1) != 0 ? sine_near(turn.rest) : cosine_near(turn.rest);
  return ((turn.quarter + 1) & 2) != 0 ? -y : y;
}
__device__ __forceinline__ double tan(double x) {
  if (!has_turn(x)) return kNan;
  if (x == 0) return x;
  const Turn turn = turn_of(x);
  const double sine = sine_near(turn.rest), cosine = cosine_near(turn.rest);
  return (turn.quarter & 1) != 0 ? -cosine / sine : sine / cosine;
}
__device__ __forceinline__ double atan(double x) {
#pragma clang fp contract(off)
  if (x != x || x == 0) return x;
  const double size = __builtin_fabs(x);
  const bool large = size > 1;
  const Two below = large ? quotient_of(1, {size, 0}) : Two{size, 0};
  const bool middle = below.high > 0.41421356237309503;  // tan(pi / 8)
  const Two over = sum_in_order(1, below.high);
  Two t = middle ? quotient_of(below.high - 1, over) : below;
  if (middle) t.low += below.low * 2 / (over.high * over.high);
  const double u = t.high * t.high;
  double series = 1.0 / 47;
#pragma unroll
  for (int k = 22; k >= 1; --k) series = __builtin_fma(series, -u, 1.0 / (2 * k + 1));
  const double rest = t.low / (1 + u) - u * t.high * series;
  const Two quarter = middle ? sum_in_order(kQuarterPi.high, t.high) : Two{t.high, 0};
  const double low = quarter.low + (rest + (middle ? kQuarterPi.low : 0));
  if (!large) return __builtin_copysign(quarter.high + low, x);
  const Two half = sum_in_order(kHalfPi.high, -quarter.high);
  return __builtin_copysign(half.high + (half.low + (kHalfPi.low - low)), x);
}

}  // namespace heddle::amd::f64
