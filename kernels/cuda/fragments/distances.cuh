// Scores with a term that depends on kv_idx - q_idx alone (generated: offset_...): a warpgroup's block has few
// distances, so each is computed once, into a table in shared memory.
#pragma once

#include "fragments/tilt.cuh"
#include "ptx/barrier.cuh"
#include "ptx/shared_words.cuh"

namespace heddle {

/// The offset of two positions that are so far apart. (It reads nothing else of them.)
__device__ __forceinline__ float term_of_distance(const shared::ModValues& mod, const BlockOrigin& at, int distance) {
  const OffsetUniform uniform = offset_uniform(mod, at.batch, at.head);
  const OffsetRow row = offset_row(mod, uniform, at.batch, at.head, 0);
  const OffsetColumn column = offset_column(mod, uniform, at.batch, at.head, distance);
  return offset_element(mod, uniform, row, column, 0.0F, at.batch, at.head, 0, distance);
}

/// Distant: the block's one term, or a table in shared memory of all that the warpgroup's rows have there: entry i is
/// that of the distance i - 63 between the first row and the first column; the last two are those far to the right and
/// far to the left. `unit`: as ScoreTilt::set() has it. By all threads of the warpgroup.
template <auto kConfig>
__device__ __forceinline__ void tabulate_distances(ptx::Address table, const shared::ModValues& mod,
                                                   const shared::FlatDistances& flat, const BlockOrigin& at,
                                                   int warpgroup, bool new_tile,
                                                   ScoreTilt<kConfig.scores, kConfig.normalizer>& tilt,
                                                   float unit = t_unit(kConfig.normalizer)) {
  constexpr int kCount = 63 + kConfig.kv_block;
  const int thread = threadIdx.x & 127;
  const int row = 16 * (thread >> 5) + ((thread & 31) >> 2);
  const int least = at.kv_first - (at.q_idx - row) - 63;
  const bool right = least >= flat.from;
  tilt.flat = __any_sync(~0U, right || least + kCount - 1 <= flat.to);
  const bool ends = __any_sync(~0U, new_tile);
  if (ends || !tilt.flat) {
    ptx::named_barrier(1 + warpgroup, 128);  // what stood there has been read
    if (ends && thread < 2) {
      ptx::store_float(table + 4 * (kCount + thread),
                       in_units(term_of_distance(mod, at, thread == 0 ? flat.from : flat.to), unit));
    }
    if (!tilt.flat) {
#pragma unroll
      for (int first = 0; first < kCount; first += 128) {
        const int i = first + thread;
        if (i < kCount) ptx::store_float(table + 4 * i, in_units(term_of_distance(mod, at, least + i), unit));
      }
    }
    ptx::named_barrier(1 + warpgroup, 128);
  }
  tilt.base[0] = tilt.base[1] = tilt.flat ? ptx::load_float(table + 4 * (kCount + (right ? 0 : 1))) : 0;
}

/// Products become t in powers of two, or t.
template <auto kConfig>
__device__ __forceinline__ void add_distances(ptx::Address table, float (&s)[kConfig.kv_block / 2], float scale_log2) {
  const int thread = threadIdx.x & 127;
  const int row = 16 * (thread >> 5) + ((thread & 31) >> 2);
  const ptx::Address own = table + 4 * (63 - row + 2 * (threadIdx.x & 3));
  // Of two rows that are 8 apart, the lower one has what the upper one has 8 columns to the left.
  float before[2] = {ptx::load_float(own - 32), ptx::load_float(own - 28)};
#pragma unroll
  for (int j = 0; j < kConfig.kv_block / 8; ++j) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const float term = ptx::load_float(own + 32 * j + 4 * e);
      s[4 * j + e] = fmaf(s[4 * j + e], scale_log2, term);
      s[4 * j + 2 + e] = fmaf(s[4 * j + 2 + e], scale_log2, before[e]);
      before[e] = term;
    }
  }
}

}  // namespace heddle
