// RDNA3: WMMA of 16 x 16 x 16 in waves of 32. A lane has of an operand the whole depth of row, or column, lane % 16,
// and so has the lane in the other half: both the same. Of a result it has column lane % 16, rows 2 g + lane / 16:
// since row r of each 16 stands at 2 (r % 8) + r / 8, these are keys, or columns of O, 8 (lane / 16) + g.
#pragma once

#include "portable/fragments/amd.cuh"

#ifdef __AMDGCN__  // on the host, tests bring the instruction's twin
namespace heddle::amd {

/// c += a b, 16 x 16 x 16, 8 words of each operand. Named after the architecture, so that overloads of equal width do
/// not collide.
template <bool kF16>
__device__ __forceinline__ void multiply_gfx11(float (&c)[8], const unsigned (&a)[8], const unsigned (&b)[8]) {
#if __has_builtin(__builtin_amdgcn_wmma_f32_16x16x16_f16_w32)
  Float8 sum = __builtin_bit_cast(Float8, c);
  if constexpr (kF16) {
    sum = __builtin_amdgcn_wmma_f32_16x16x16_f16_w32(__builtin_bit_cast(Half16, a), __builtin_bit_cast(Half16, b), sum);
  } else {
    sum = __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32(__builtin_bit_cast(Short16, a), __builtin_bit_cast(Short16, b),
                                                      sum);
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) c[i] = sum[i];
#endif
}

}  // namespace heddle::amd
#endif

namespace heddle::portable {

struct Gfx11Layout {
  static constexpr int kKeys = 16, kOwn = 8, kRun = 8, kDepth = 16, kWords = 8;
  static __device__ __forceinline__ int own(int lane, int c) { return lane / 16 * 8 + c; }
  static __device__ __forceinline__ int operand(int) { return 0; }
  static __device__ __forceinline__ int stored(int r) { return 2 * (r % 8) + r / 8; }
  /// The weights of both halves of the wave, in the order of keys.
  static __device__ __forceinline__ void weights(unsigned (&b)[8], const unsigned (&own)[4], int lane) {
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      const unsigned other = amd::other_half<32>(own[w]);
      b[w] = lane < 16 ? own[w] : other;
      b[4 + w] = lane < 16 ? other : own[w];
    }
  }
  template <bool kF16>
  static __device__ __forceinline__ void multiply(float (&c)[kOwn], const unsigned (&a)[kWords],
                                                  const unsigned (&b)[kWords]) {
    amd::multiply_gfx11<kF16>(c, a, b);
  }
};

template <auto kConfig>
struct Gfx11Fragments : AmdFragments<kConfig, Gfx11Layout> {};

}  // namespace heddle::portable
