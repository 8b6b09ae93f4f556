// CDNA: MFMA of 32 x 32 x 8 in waves of 64. A lane has of an operand row, or column, lane % 32 and of its depth
// 4 (lane / 32) and on, 4; of a result column lane % 32, rows 8 (g / 4) + 4 (lane / 32) + g % 4. So four of its
// weights are its part of the next operand, for each 8 keys.
#pragma once

#include "portable/fragments/amd.cuh"

#ifdef __AMDGCN__  // on the host, tests bring the instruction's twin
namespace heddle::amd {

/// c += a b, 32 x 32 x 8, 2 words of each operand. Named after the architecture, so that overloads of equal width do
/// not collide.
template <bool kF16>
__device__ __forceinline__ void multiply_gfx9(float (&c)[16], const unsigned (&a)[2], const unsigned (&b)[2]) {
#if __has_builtin(__builtin_amdgcn_mfma_f32_32x32x8f16)
  Float16 sum = __builtin_bit_cast(Float16, c);
  if constexpr (kF16) {
    sum =
        __builtin_amdgcn_mfma_f32_32x32x8f16(__builtin_bit_cast(Half4, a), __builtin_bit_cast(Half4, b), sum, 0, 0, 0);
  } else {
    sum = __builtin_amdgcn_mfma_f32_32x32x8bf16_1k(__builtin_bit_cast(Short4, a), __builtin_bit_cast(Short4, b), sum, 0,
                                                   0, 0);
  }
#pragma unroll
  for (int i = 0; i < 16; ++i) c[i] = sum[i];
#endif
}

}  // namespace heddle::amd
#endif

namespace heddle::portable {

struct Gfx9Layout {
  static constexpr int kKeys = 32, kOwn = 16, kRun = 4, kDepth = 8, kWords = 2;
  static __device__ __forceinline__ int own(int lane, int c) { return c / 4 * 8 + lane / 32 * 4 + c % 4; }
  static __device__ __forceinline__ int operand(int lane) { return lane / 32 * 4; }
  static __device__ __forceinline__ int stored(int r) { return r; }
  static __device__ __forceinline__ void weights(unsigned (&b)[2], const unsigned (&own)[2], int) {
    b[0] = own[0], b[1] = own[1];
  }
  template <bool kF16>
  static __device__ __forceinline__ void multiply(float (&c)[kOwn], const unsigned (&a)[kWords],
                                                  const unsigned (&b)[kWords]) {
    amd::multiply_gfx9<kF16>(c, a, b);
  }
};

template <auto kConfig>
struct Gfx9Fragments : AmdFragments<kConfig, Gfx9Layout> {};

}  // namespace heddle::portable
