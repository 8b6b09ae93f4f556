// RDNA4: WMMA of 16 x 16 x 16 in waves of 32. A lane has of an operand row, or column, lane % 16 and half of its depth,
// of a result column lane % 16, rows 8 (lane / 16) + g: its own weights are its part of the next operand. (Any 8 of the
// depth will do that both operands agree on: 8 (lane / 16) and on.)
#pragma once

#include "portable/fragments/amd.cuh"

#ifdef __AMDGCN__  // on the host, tests bring the instruction's twin
namespace heddle::amd {

/// c += a b, 16 x 16 x 16, 4 words of each operand. Named after the architecture, so that overloads of equal width do
/// not collide.
template <bool kF16>
__device__ __forceinline__ void multiply_gfx12(float (&c)[8], const unsigned (&a)[4], const unsigned (&b)[4]) {
#if __has_builtin(__builtin_amdgcn_wmma_f32_16x16x16_f16_w32_gfx12)
  Float8 sum = __builtin_bit_cast(Float8, c);
  if constexpr (kF16) {
    sum = __builtin_amdgcn_wmma_f32_16x16x16_f16_w32_gfx12(__builtin_bit_cast(Half8, a), __builtin_bit_cast(Half8, b),
                                                           sum);
  } else {
    sum = __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32_gfx12(__builtin_bit_cast(Short8, a),
                                                            __builtin_bit_cast(Short8, b), sum);
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) c[i] = sum[i];
#endif
}

}  // namespace heddle::amd
#endif

namespace heddle::portable {

struct Gfx12Layout {
  static constexpr int kKeys = 16, kOwn = 8, kRun = 8, kDepth = 16, kWords = 4;
  static __device__ __forceinline__ int own(int lane, int c) { return lane / 16 * 8 + c; }
  static __device__ __forceinline__ int operand(int lane) { return lane / 16 * 8; }
  static __device__ __forceinline__ int stored(int r) { return r; }
  static __device__ __forceinline__ void weights(unsigned (&b)[4], const unsigned (&own)[4], int) {
#pragma unroll
    for (int w = 0; w < 4; ++w) b[w] = own[w];
  }
  template <bool kF16>
  static __device__ __forceinline__ void multiply(float (&c)[kOwn], const unsigned (&a)[kWords],
                                                  const unsigned (&b)[kWords]) {
    amd::multiply_gfx12<kF16>(c, a, b);
  }
};

template <auto kConfig>
struct Gfx12Fragments : AmdFragments<kConfig, Gfx12Layout> {};

}  // namespace heddle::portable
