// RDNA4: WMMA of 16 x 16 x 16 in waves of 32. A lane has of an operand row, or column, lane % 16 and half of its depth, of
// a result column lane % 16, rows 8 (lane / 16) + g: its own weights are its part of the next operand. (Any 8 of the
// depth will do that both operands agree on: 8 (lane / 16) and on.)
#pragma once

#include "portable/fragments/amd.cuh"

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
