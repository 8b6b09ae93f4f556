// Queries of bf16 beside keys of 8 bits become f16, each row times a power of two that keeps its range.
#pragma once

#include "ptx/math.cuh"

namespace heddle::portable {

// The elements of a pair of bf16.
__device__ __forceinline__ float low_bfloat(unsigned both) { return __int_as_float(static_cast<int>(both << 16)); }
__device__ __forceinline__ float high_bfloat(unsigned both) {
  return __int_as_float(static_cast<int>(both & 0xffff0000));
}

/// The larger of `largest` and the finite elements' magnitudes.
__device__ __forceinline__ float largest_with(float largest, unsigned both) {
  const auto with = [&](float x) { return fabsf(x) < ptx::infinity() ? fmaxf(largest, fabsf(x)) : largest; };
  largest = with(low_bfloat(both));
  return with(high_bfloat(both));
}

/// The power of two that brings the largest finite element of a row to 2^14: f16 then holds all elements down to 2^-31
/// of it exactly. At most 2^126, whose inverse is a normal number.
__device__ __forceinline__ float power_for(float largest) {
  const int exponent = __float_as_int(largest) >> 23, power = 2 * 127 + 14 - exponent;
  return __int_as_float((power < 253 ? power : 253) << 23);
}
/// 1 / x of a power of two.
__device__ __forceinline__ float inverse_of_power(float power) {
  return __int_as_float((254 << 23) - __float_as_int(power));
}

}  // namespace heddle::portable
