// dq of dQ's sums, which stand as shared/backward_rows.h says.
#pragma once

#include "families/backward_sm90/shared/backward_sm90_config.h"
#include "fragments/output_elements.cuh"
#include "fragments/quads.cuh"
#include "ptx/math.cuh"
#include "shared/backward_tiles.h"

namespace heddle {

/// A thread's share of a block of dq: two rows, eight apart, of which it has two elements of each eight columns.
template <auto kConfig>
class DqRows {
 public:
  using Elements = OutputElements<kConfig.d_q_type, kConfig.f16>;
  using One = typename Elements::One;
  // A thread of a quad stores 16 bytes of a row, not 4 of each 16.
  static constexpr bool kVectorised = kConfig.vectorised_d_q && kConfig.d_q_type == shared::StorageType::same;

  /// `thread`: among the 128 that share the block.
  __device__ __forceinline__ void set(const shared::RowOutput& out, const shared::RowBlock& block, int head,
                                      int thread) {
    row_ = 16 * (thread / 32) + thread % 32 / 4;
    live_ = block.live;
    stored_ = block.stored;
    const long long first = block.batch * out.stride[0] + head * out.stride[1];
    to_ = static_cast<One*>(out.data) + first + (block.row + row_) * out.stride[2];
    eight_rows_ = 8 * out.stride[2];
  }

  /// 32 columns from number `columns` on, by all threads of a quad. Rows of no query become zeros.
  __device__ __forceinline__ void store(float factor, int columns, const float (&sums)[16]) const {
    store_row(factor, columns, sums, 0);
    store_row(factor, columns, sums, 1);
  }

 private:
  __device__ __forceinline__ void store_row(float factor, int columns, const float (&sums)[16], int r) const {
    One* const to = to_ + r * eight_rows_;
    const int lane = static_cast<int>(threadIdx.x & 3);
    const bool live = row_ + 8 * r < live_, stored = row_ + 8 * r < stored_;
    if constexpr (kVectorised) {
      unsigned words[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const unsigned two = ptx::pack<kConfig.f16>(sums[4 * j + 2 * r] * factor, sums[4 * j + 2 * r + 1] * factor);
        words[j] = live ? two : 0U;
      }
      turn_words(words);
      const int column = columns + 8 * lane;
      if (stored && column < kConfig.qk_dim) {
        *reinterpret_cast<uint4*>(to + column) = {words[0], words[1], words[2], words[3]};
      }
    } else {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int column = columns + 8 * j + 2 * lane, i = 4 * j + 2 * r;
        const typename Elements::Pair two =
            Elements::pair(live ? sums[i] * factor : 0.0F, live ? sums[i + 1] * factor : 0.0F);
        if (!stored || column >= kConfig.qk_dim) continue;
        if (!kConfig.odd_gradients && column + 1 < kConfig.qk_dim) {
          *reinterpret_cast<typename Elements::Pair*>(to + column) = two;
        } else {
          to[column] = Elements::first(two);
          if (column + 1 < kConfig.qk_dim) to[column + 1] = Elements::second(two);
        }
      }
    }
  }

  One* to_;  // its first row
  long long eight_rows_;
  int row_, live_, stored_;
};

}  // namespace heddle
