// kernels/nvidia/fragments/output_elements.cuh for AMD. Rounded once, to nearest even; what overflows is infinity, or
// NaN where the type has none.
#pragma once

#include "fragments/output_elements_of_halves.cuh"
#include "ptx/math.cuh"
#include "shared/storage.h"

namespace heddle {

/// Rounds x to kMantissa bits and an exponent of bias kBias; `limit` and larger values become `over`.
template <int kMantissa, int kBias>
__device__ __forceinline__ unsigned rounded_to_8_bits(float x, float limit, unsigned over) {
  const unsigned bits = __float_as_uint(x), sign = bits >> 24 & 0x80U;
  const float size = __builtin_fabsf(x);
  if (!(size < limit)) return sign | (x == x ? over : 0x7fU);
  // Below the smallest normal number steps are of one size: adding 2^23 of them rounds.
  constexpr float kLeast = 1.0F / (1 << (kBias - 1)), kStep = kLeast / (1 << kMantissa);
  if (size < kLeast) {
    const float shifted = amd::add_f32(size, kStep * 0x1p23F);
    return sign | (__float_as_uint(shifted) - __float_as_uint(kStep * 0x1p23F));
  }
  constexpr int kCut = 23 - kMantissa;
  const unsigned own = bits & 0x7fffffffU, even = own >> kCut & 1;
  return sign | (((own + (1U << (kCut - 1)) - 1 + even) >> kCut) - ((127U - kBias) << kMantissa));
}

template <StorageType kType, bool kF16>
struct OutputElements {  // e4m3, e5m2
  using One = unsigned char;
  using Pair = unsigned short;
  /// e4m3 ends at 448 and has no infinity; e5m2 ends at 57344. A tie with what would come next goes to the even one.
  static __device__ __forceinline__ unsigned one(float x) {
    if constexpr (kType == StorageType::e4m3) return rounded_to_8_bits<3, 7>(x, 0x1.d000002p+8F, 0x7fU);
    return x == x ? rounded_to_8_bits<2, 15>(x, 61440.0F, 0x7cU) : (__float_as_uint(x) >> 24 & 0x80U) | 0x7eU;
  }
  static __device__ __forceinline__ Pair pair(float x, float y) { return static_cast<Pair>(one(x) | one(y) << 8); }
  static __device__ __forceinline__ One first(Pair pair) { return static_cast<One>(pair); }
  static __device__ __forceinline__ One second(Pair pair) { return static_cast<One>(pair >> 8); }
};

}  // namespace heddle
