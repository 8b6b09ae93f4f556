// The words of a stored mask (shared/stored_mask.h), found before any run of forward_sm90: a CTA of `warpgroups`
// warpgroups for some of the blocks of a run of them, a thread for each thread that will take the words. A thread
// computes the mask of the elements that it has in forward_sm90, in the order that they have there. Rows and keys past
// a sequence's end are computed too; no kernel reads them.
//
// Included last by a generated source, which defines kBySequence and the mask's functions
// (device_text/expression_text.h).
#pragma once

#include "shared/stored_mask.h"

namespace heddle::stored_mask {

/// Words of the thread's rows q_idx and q_idx + 8, and its columns of the keys from kv_first on.
__device__ __forceinline__ shared::MaskWords words_of(const shared::ModValues& mod, int b, int h, int q_idx,
                                                      int kv_first, int keys) {
  const MaskUniform uniform = mask_uniform(mod, b, h);
  const MaskRow rows[2] = {mask_row(mod, uniform, b, h, q_idx), mask_row(mod, uniform, b, h, q_idx + 8)};
  shared::MaskWords words = {{0, 0}};
#pragma unroll 2
  for (int j = 0; j < keys / 8; ++j) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int kv_idx = kv_first + 8 * j + e;
      const MaskColumn column = mask_column(mod, uniform, b, h, kv_idx);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        if (mask_element(mod, uniform, rows[r], column, b, h, q_idx + 8 * r, kv_idx)) {
          words.row[r] |= 1U << shared::mask_bit(j, e);
        }
      }
    }
  }
  return words;
}

}  // namespace heddle::stored_mask

extern "C" __global__ void __launch_bounds__(3 * heddle::shared::kStoredThreads)
    store_mask(const __grid_constant__ heddle::shared::StoredMaskParams params) {
  using namespace heddle;
  const shared::StoredRun run = params.runs[blockIdx.x];
  const int warpgroup = static_cast<int>(threadIdx.x) / shared::kStoredThreads,
            thread = static_cast<int>(threadIdx.x) % shared::kStoredThreads, lane = thread % 32;
  if ((run.warpgroups >> warpgroup & 1) == 0) return;
  const int q_start = kBySequence ? params.mod.sequences[run.batch].q_start : params.mod.q_start;
  const int row = shared::kWarpgroupRows * warpgroup + 16 * (thread / 32) + lane / 4;
  for (int i = static_cast<int>(blockIdx.y); i < run.blocks; i += static_cast<int>(gridDim.y)) {
    const int block = run.block + i;
    const shared::MaskWords words = stored_mask::words_of(params.mod, run.batch, run.head, run.q_first + row + q_start,
                                                          block * params.kv_block + 2 * (lane % 4), params.kv_block);
    params.words[shared::stored_word(run.words_at + block, params.warpgroups, warpgroup, thread)] = words;
  }
}
