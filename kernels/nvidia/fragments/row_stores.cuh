// A finished tile's way out by ordinary stores: lse, largest scores, and an o that TMA does not store.
#pragma once

#include "fragments/output_elements.cuh"
#include "fragments/tile_rows.cuh"
#include "shared/tile_walk.h"

namespace heddle {

using shared::TileOrigin;

/// The sequence of a tile, as far as stores need it.
struct TileSequence {
  int q_begin, q_len;
};

/// Stores 64 rows of one warpgroup, of an o that TMA does not store. Every thread stores its own elements, in pairs if
/// these divide the strides and the address. A repeated tile is stored in order: the same threads write the
/// same addresses.
template <auto kConfig>
__device__ __forceinline__ void store_output_by_threads(const shared::Outputs& out, int warpgroup,
                                                        const TileOrigin& origin, const TileSequence& sequence,
                                                        const float (&o)[kConfig.v_columns() / 2],
                                                        const float (&factor)[2]) {
  using Elements = OutputElements<kConfig.o_type, kConfig.f16>;
  using One = typename Elements::One;
  const int lane = threadIdx.x & 31;
  One* head = static_cast<One*>(out.o) + origin.batch * out.o_stride[0] + origin.head * out.o_stride[1];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = origin.q_first + query_of_thread<kConfig>(warpgroup) + 8 * r;
    One* to = head + (sequence.q_begin + row) * out.o_stride[2] + 2 * (lane & 3);
#pragma unroll
    for (int j = 0; j < kConfig.v_columns() / 8; ++j) {
      const int column = 8 * j + 2 * (lane & 3), i = 4 * j + 2 * r;
      const typename Elements::Pair two = Elements::pair(o[i] * factor[r], o[i + 1] * factor[r]);
      if (row < sequence.q_len && (8 * j + 8 <= kConfig.v_dim || column + 1 < kConfig.v_dim)) {
        if constexpr (kConfig.odd_o) {
          to[8 * j] = Elements::first(two);
          to[8 * j + 1] = Elements::second(two);
        } else {
          *reinterpret_cast<typename Elements::Pair*>(to + 8 * j) = two;
        }
      }
      if constexpr (kConfig.v_dim % 2 != 0) {
        if (row < sequence.q_len && column + 1 == kConfig.v_dim) to[8 * j] = Elements::first(two);
      }
    }
  }
}

__device__ __forceinline__ void store_lse(const shared::Outputs& out, const TileOrigin& origin, int row, float lse) {
  out.lse[origin.batch * out.lse_stride[0] + origin.head * out.lse_stride[1] + row * out.lse_stride[2]] = lse;
}

/// A row's largest score, or lse_rest.
__device__ __forceinline__ void store_number(const shared::RowNumbers& out, const TileOrigin& origin, int row,
                                             float x) {
  out.data[origin.batch * out.stride[0] + origin.head * out.stride[1] + row * out.stride[2]] = x;
}

}  // namespace heddle
