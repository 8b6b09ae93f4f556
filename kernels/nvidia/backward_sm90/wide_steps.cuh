// The steps of a pair's tile, for threads that the producer does not tell where dQ goes.
#pragma once

#include "backward_sm90/wide_memory.cuh"
#include "families/backward_sm90/shared/backward_sm90_params.h"
#include "shared/backward_lists.h"

namespace heddle {

/// Calls visit(step, block) for each step in order. `block` counts the blocks of all query heads: dQ's sums of a block
/// begin at block * panels * kPartFloats.
template <auto kConfig, class Visit>
__device__ __forceinline__ void visit_wide_steps(const WideMemory<kConfig>& memory,
                                                 const shared::BackwardSm90Params& params, Visit&& visit) {
  const int first = memory.tile_word(shared::kTileFirstBlock);
  const shared::QueryRun* run = params.runs + memory.tile_word(shared::kTileFirstRun);
  int left = memory.tile_word(shared::kTileSteps) > 0 ? memory.tile_word(shared::kTileRuns) : 0;
  int step = 0;
#pragma unroll 1
  for (; left > 0; --left, ++run) {
    int end = run->end;
    if constexpr (kConfig.device_lengths) end = min(end, shared::blocks_of_rows(memory.tile_word(shared::kTileQLen)));
    const int head = run->head;
#pragma unroll 1
    for (int block = run->begin; block < end; ++block, ++step) {
      visit(step, static_cast<long long>(first + block) * params.q_heads + head);
    }
  }
}

}  // namespace heddle
