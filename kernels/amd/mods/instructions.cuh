// kernels/nvidia/mods/instructions.cuh in AMD's instructions: what mods need and the language has no function for.
#pragma once

#include "language/language.cuh"

namespace heddle::ops {

/// NaN if either is NaN.
__device__ __forceinline__ float min_nan(float x, float y) { return x < y || x != x ? x : y; }
__device__ __forceinline__ float max_nan(float x, float y) { return x > y || x != x ? x : y; }

__device__ __forceinline__ int least(int x, int y) { return y < x ? y : x; }
__device__ __forceinline__ int most(int x, int y) { return x < y ? y : x; }

/// 1 / x to 1 ulp, but 0 for a subnormal result and infinity for a subnormal x.
__device__ __forceinline__ float reciprocal_near(float x) { return amd::reciprocal(x); }
/// 2^x to 2 ulp; subnormal results are 0.
__device__ __forceinline__ float exp2_near(float x) { return amd::exp2(x); }

/// The number that the bits of an f16 mean.
__device__ __forceinline__ float from_half(unsigned short bits) {
  return static_cast<float>(__builtin_bit_cast(_Float16, bits));
}

/// Another thread's value; all threads of the warp take part.
template <class T>
__device__ __forceinline__ T from_lane(T x, int lane) {
  return amd::shuffle(x, lane);
}
__device__ __forceinline__ bool from_lane(bool x, int lane) { return amd::shuffle(x ? 1 : 0, lane) != 0; }

/// Whether no computation tells the two values apart.
template <class T>
__device__ __forceinline__ bool same(T x, T y) {
  return x == y;
}
__device__ __forceinline__ bool same(float x, float y) { return __float_as_uint(x) == __float_as_uint(y); }

/// Reads memory that does not change while the kernel runs. If not `readable`, gives 0 without an access.
template <class Bits>
__device__ __forceinline__ Bits read_global(unsigned long long address, bool readable) {
  Bits bits = 0;
  if (readable) bits = *reinterpret_cast<const Bits __attribute__((address_space(1)))*>(address);
  return bits;
}
template <int kBytes>
__device__ __forceinline__ auto read_if(unsigned long long address, bool readable) {
  if constexpr (kBytes == 1) {
    return static_cast<unsigned>(read_global<unsigned char>(address, readable));
  } else if constexpr (kBytes == 2) {
    return static_cast<unsigned>(read_global<unsigned short>(address, readable));
  } else if constexpr (kBytes == 4) {
    return read_global<unsigned>(address, readable);
  } else {
    return read_global<unsigned long long>(address, readable);
  }
}

}  // namespace heddle::ops
