// The record of a tile in shared memory, from the list of tiles: what all warps of a CTA read of it.
#pragma once

#include "families/backward_sm90/shared/backward_sm90_config.h"
#include "families/backward_sm90/shared/backward_sm90_params.h"
#include "ptx/shared_words.cuh"

namespace heddle {

template <auto kConfig>
__device__ __forceinline__ void store_tile_record(ptx::Address to, const shared::BackwardSm90Params& params,
                                                  const shared::BackwardItem item) {
  ptx::store_words(to, item.kv_tile, item.kv_head, item.batch, item.first_run);
  ptx::store_words(to + 16, item.runs, item.steps, item.first_block, item.share);
  if constexpr (kConfig.by_sequence) {
    const shared::SequenceSpan span = params.mod.sequences[item.batch];
    ptx::store_words(to + shared::kTileQLen, span.q_len, span.kv_len, span.q_start, span.kv_begin);
    ptx::store_words(to + shared::kTileQEnd, span.q_end, span.kv_end, span.kv_before, 0);
  } else {
    ptx::store_words(to + shared::kTileQLen, params.tensors.q_len, params.tensors.kv_len, params.mod.q_start, 0);
  }
}

}  // namespace heddle
