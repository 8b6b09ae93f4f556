// What does not attend becomes -inf in the registers of S: keys past the end, and in a partial step what the mask_mod
// excludes (generated: mask_uniform, mask_row, mask_column, mask_element).
#pragma once

#include "pieces/memory.cuh"
#include "ptx/math.cuh"

namespace heddle {

/// Of the block's keys only so many are there. s: registers, 64 x kv_block.
template <ForwardSm90Config kConfig>
__device__ __forceinline__ void cut_scores(float (&s)[kConfig.kv_block / 2], int keys) {
  const int left = keys - 2 * (threadIdx.x & 3);
#pragma unroll
  for (int j = 0; j < kConfig.kv_block / 8; ++j) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      if (8 * j + e >= left) s[4 * j + e] = s[4 * j + 2 + e] = -ptx::infinity();
    }
  }
}

/// s: registers, 64 x kv_block; `q_row` the thread's first row, `kv_first` the block's first key.
template <ForwardSm90Config kConfig>
__device__ __forceinline__ void mask_scores(float (&s)[kConfig.kv_block / 2], const shared::ModValues& mod, int batch,
                                            int head, int q_row, int kv_first) {
  const MaskUniform uniform = mask_uniform(mod, batch, head);
  const int q_idx[2] = {q_row + mod.q_start, q_row + 8 + mod.q_start};
  const MaskRow row[2] = {mask_row(mod, uniform, batch, head, q_idx[0]), mask_row(mod, uniform, batch, head, q_idx[1])};
  const MaskColumns<kConfig.kv_block> columns(mod, uniform, batch, head, kv_first);
#pragma unroll
  for (int j = 0; j < kConfig.kv_block / 8; ++j) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int kv_idx = kv_first + 2 * (threadIdx.x & 3) + 8 * j + e;
      const MaskColumn column = columns.at(j, e);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        if (!mask_element(mod, uniform, row[r], column, batch, head, q_idx[r], kv_idx)) {
          s[4 * j + 2 * r + e] = -ptx::infinity();
        }
      }
    }
  }
}

}  // namespace heddle
