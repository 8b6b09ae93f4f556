// dK and dV from a consumer's accumulators to memory: 64 keys, each thread two of them.
#pragma once

#include "families/backward_sm90/shared/backward_sm90_params.h"
#include "fragments/output_elements.cuh"
#include "fragments/quads.cuh"
#include "ptx/math.cuh"
#include "ptx/matrix_store.cuh"
#include "ptx/shared_words.cuh"

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

/// Likewise, by way of a warp's own 16 rows x all columns in shared memory: instructions are a third of the above.
/// `row`: the warp's first.
template <auto kConfig, int kCount>
__device__ __forceinline__ void store_staged(ptx::Address stage, const shared::RowOutput& out, int dim,
                                             const float (&d)[kCount], float factor, long long head_at, int row,
                                             int live, int stored) {
  constexpr int kRowBytes = 4 * kCount;  // 2 kCount columns
  constexpr int kRowsAtOnce = 32 / (kRowBytes / 16);
  const int lane = threadIdx.x & 31;
  {
    const int matrix = lane >> 3, r = 8 * (matrix & 1) + (lane & 7);
    const ptx::Address to = stage + r * kRowBytes;
    const unsigned turned = static_cast<unsigned>((matrix >> 1) ^ (lane & 7));
#pragma unroll
    for (int g = 0; g < kCount / 8; ++g) {  // sixteen columns
      unsigned words[4];
#pragma unroll
      for (int j = 0; j < 4; ++j)
        words[j] = ptx::pack<kConfig.f16>(d[8 * g + 2 * j] * factor, d[8 * g + 2 * j + 1] * factor);
      ptx::store_matrices(to + ((2U * g) ^ turned) * 16, words);
    }
  }
  __syncwarp();
  // With 192 columns a row has 24 chunks, and the last eight lanes none.
  const int chunk = lane % (kRowBytes / 16), first = lane / (kRowBytes / 16);
  auto* to = static_cast<unsigned short*>(out.data) + head_at + (row + first) * out.stride[2] + 8 * chunk;
  const long long next = kRowsAtOnce * out.stride[2];
#pragma unroll 2  // more would spill
  for (int i = 0; i < 16 / kRowsAtOnce; ++i, to += next) {
    const int r = kRowsAtOnce * i + first, own = row + r;
    int words[4];
    ptx::load_words(stage + r * kRowBytes + ((chunk ^ (r & 7)) * 16), words);
    if (own >= stored || first >= kRowsAtOnce || 8 * chunk >= dim) continue;
    const auto word = [&](int j) { return own < live ? static_cast<unsigned>(words[j]) : 0U; };
    *reinterpret_cast<uint4*>(to) = {word(0), word(1), word(2), word(3)};
  }
  __syncwarp();
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
