// A finished tile's way out through shared memory and TMA.
#pragma once

#include "forward_sm90/memory.cuh"
#include "fragments/row_stores.cuh"
#include "fragments/tile_rows.cuh"
#include "ptx/math.cuh"
#include "ptx/matrix_store.cuh"
#include "ptx/tma.cuh"

namespace heddle {

/// 64 rows of one warpgroup. o: registers, 64 x v_columns; `factor` multiplies the thread's two rows. `longest`:
/// queries of the longest sequence. Packed: `origin` and `sequence` are of the head of this warp's rows; the first warp
/// of each head stores it, if it has queries.
template <auto kConfig>
__device__ __forceinline__ void store_output(const SharedMemory<kConfig>& memory, const ptx::TensorMap& map,
                                             int warpgroup, const TileOrigin& origin, const TileSequence& sequence,
                                             int longest, const float (&o)[kConfig.v_columns() / 2],
                                             const float (&factor)[2]) {
  const int thread = threadIdx.x & 127, lane = thread & 31, warp = thread >> 5;
  const ptx::Address staged = memory.output(warpgroup);  // shared, [o_panels][64][64], 128-byte swizzle
  const int row = warp * 16 + (lane & 7) + 8 * ((lane >> 3) & 1);
  // A warpgroup past the end of its sequence has nothing to store, and a box that lies outside of its map may not be
  // named.
  bool waits = thread == 0,
       stores = thread == 0 && (!kConfig.device_lengths || origin.q_first + 64 * warpgroup < sequence.q_len);
  if constexpr (kConfig.packs()) {
    waits = lane == 0;
    stores = lane == 0 && 16 * warp % kConfig.queries() == 0 && sequence.q_len > 0;
  }
#pragma unroll
  for (int first_panel = 0; first_panel < kConfig.output_panels(); first_panel += kConfig.o_panels) {
    // A repeated tile overwrites its first result, so the first store must be complete.
    if (waits && first_panel == 0) ptx::tma_store_wait();
    if (waits && first_panel > 0) ptx::tma_store_wait_read();
    ptx::named_barrier(1 + warpgroup, 128);
#pragma unroll
    for (int c = 0; c < kConfig.o_panels * 4; ++c) {
      const int d = 8 * (first_panel * 4 + c);  // registers of 16 columns
      const int chunk = (c % 4) * 2 + (lane >> 4);
      const ptx::Address to = staged + (c / 4) * 64 * 128 + row * 128 + ((chunk ^ (row & 7)) * 16);
      const auto two = [&](int i) {  // of one row
        return ptx::pack<kConfig.f16>(o[d + i] * factor[i / 2 % 2], o[d + i + 1] * factor[i / 2 % 2]);
      };
      if (2 * d + 16 <= kConfig.v_columns()) {
        ptx::store_matrices(to, {two(0), two(2), two(4), two(6)});
      } else if (2 * d < kConfig.v_columns()) {  // the last 8 columns
        ptx::store_two_matrices(to, {two(0), two(2)});
      }
    }
    ptx::fence_for_tma();
    ptx::named_barrier(1 + warpgroup, 128);
    if (stores) {
      for (int panel = 0; panel < kConfig.o_panels && first_panel + panel < kConfig.output_panels(); ++panel) {
        const ptx::Address from = staged + panel * 64 * 128 + (kConfig.packs() ? 16 * warp * 128 : 0);
        const int column = (first_panel + panel) * 64;
        const int first = origin.q_first + (kConfig.packs() ? 0 : 64 * warpgroup);
        if constexpr (kConfig.by_sequence) {
          ptx::tma_store_before(sequence.q_begin + sequence.q_len, map, from, column, first + longest - sequence.q_len,
                                origin.head, origin.batch);
        } else {
          ptx::tma_store(map, from, column, first, origin.head, origin.batch);
        }
      }
      ptx::tma_store_commit();
    }
  }
}

}  // namespace heddle
