// Numbers of f32 as operands of tf32's products, which read their first 10 bits behind the point.
#pragma once

#include "ptx/math.cuh"

namespace heddle::ptx {

/// To the nearest number of tf32, halves away from 0. Products ignore the bits behind its own. Infinities and NaN are
/// kept: adding to their bits would change them.
__device__ __forceinline__ unsigned to_tf32(float x) {
  const int bits = __float_as_int(x);
  constexpr int kHalf = 1 << 12;
  return static_cast<unsigned>(fabsf(x) < infinity() ? bits + kHalf : bits);
}

}  // namespace heddle::ptx
