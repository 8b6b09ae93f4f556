// Sums and maxima of a row over the lanes of a warp that share it.
#pragma once

#include "ptx/math.cuh"

namespace heddle {

/// Combines the numbers of the lanes whose indices differ in these bits alone, one bit after the other. Every lane gets
/// the result.
template <int... kLaneBits, class Number, class Combine>
__device__ __forceinline__ Number over_lanes(Number x, Combine combine) {
  ((x = combine(x, __shfl_xor_sync(~0U, x, kLaneBits))), ...);
  return x;
}
template <int... kLaneBits, class Number>
__device__ __forceinline__ Number sum_over_lanes(Number x) {
  return over_lanes<kLaneBits...>(x, [](Number a, Number b) { return a + b; });
}
template <int... kLaneBits>
__device__ __forceinline__ float max_over_lanes(float x) {
  return over_lanes<kLaneBits...>(x, [](float a, float b) { return fmaxf(a, b); });
}
template <int... kLaneBits>
__device__ __forceinline__ double max_over_lanes(double x) {
  return over_lanes<kLaneBits...>(x, [](double a, double b) { return fmax(a, b); });
}

/// Over a quad: the four lanes that share a row of an accumulator.
template <class Number>
__device__ __forceinline__ Number quad_sum(Number x) {
  return sum_over_lanes<1, 2>(x);
}
template <class Number>
__device__ __forceinline__ Number quad_max(Number x) {
  return max_over_lanes<1, 2>(x);
}

}  // namespace heddle
