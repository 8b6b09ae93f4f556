// kernels/nvidia/ptx/math.cuh in AMD's instructions, as far as kernels that serve AMD too use it.
#pragma once

#include "language/language.cuh"

namespace heddle::ptx {

__device__ __forceinline__ float infinity() { return __builtin_inff(); }

/// Two floats rounded to the storage type, `low` in the lower half.
template <bool kF16>
__device__ __forceinline__ unsigned pack(float low, float high) {
  return amd::pack<kF16>(low, high);
}

}  // namespace heddle::ptx
