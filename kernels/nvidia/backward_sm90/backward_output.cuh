// dK and dV from a consumer's accumulators to memory: 64 keys, each thread two of them.
#pragma once

#include "fragments/output_elements.cuh"
#include "fragments/quads.cuh"
#include "ptx/math.cuh"
#include "families/backward_sm90/shared/backward_sm90_params.h"

namespace heddle {

/// The rows of dK or dV that a warpgroup's accumulator holds, stored by its threads, 16 bytes each; rows past the
/// sequence's last key as zeros.
template <auto kConfig, int kCount>
__device__ __forceinline__ void store_vectorised(const shared::RowOutput& out, int dim, const float (&d)[kCount],
                                                 float factor, long long head_at, int row, int live, int stored) {
  const int lane = threadIdx.x & 31;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int own = row + 8 * r;
    auto* to = static_cast<unsigned short*>(out.data) + head_at + own * out.stride[2];
#pragma unroll
    for (int g = 0; g < kCount / 16; ++g) {
      unsigned words[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int i = 16 * g + 4 * j + 2 * r;
        words[j] = own < live ? ptx::pack<kConfig.f16>(d[i] * factor, d[i + 1] * factor) : 0U;
      }
      turn_words(words);
      const int column = 32 * g + 8 * (lane & 3);
      if (own >= stored || column >= dim) continue;
      *reinterpret_cast<uint4*>(to + column) = {words[0], words[1], words[2], words[3]};
    }
  }
}

/// Stores elements by pairs or one by one, in the gradient's type.
template <auto kConfig, shared::StorageType kType, int kCount>
__device__ __forceinline__ void store_gradient(const shared::RowOutput& out, int dim, const float (&d)[kCount],
                                               float factor, long long head_at, int row, int live, int stored) {
  if constexpr (kConfig.vectorised_gradients && kType == shared::StorageType::same) {
    store_vectorised<kConfig>(out, dim, d, factor, head_at, row, live, stored);
    return;
  }
  using Elements = OutputElements<kType, kConfig.f16>;
  using One = typename Elements::One;
  const int lane = threadIdx.x & 31;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int own = row + 8 * r;
    One* to = static_cast<One*>(out.data) + head_at + own * out.stride[2];
#pragma unroll
    for (int j = 0; j < kCount / 4; ++j) {
      const int column = 8 * j + 2 * (lane & 3), i = 4 * j + 2 * r;
      const bool is_key = own < live;
      const typename Elements::Pair two =
          Elements::pair(is_key ? d[i] * factor : 0.0F, is_key ? d[i + 1] * factor : 0.0F);
      if (own >= stored || column >= dim) continue;
      if (!kConfig.odd_gradients && column + 1 < dim) {
        *reinterpret_cast<typename Elements::Pair*>(to + column) = two;
      } else {
        to[column] = Elements::first(two);
        if (column + 1 < dim) to[column + 1] = Elements::second(two);
      }
    }
  }
}

}  // namespace heddle
