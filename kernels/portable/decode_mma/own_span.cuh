// Where mods read the numbers of a sequence whose lengths are on the device: a place of each wave in shared memory. In
// the workspace all waves would write the same numbers at once, and page numbers that are read behind them came up to
// 20 us late.
#pragma once

#include "families/decode_mma/shared/decode_mma_memory.h"
#include "ptx/mma_sync.cuh"

namespace heddle::portable {

template <auto kConfig>
__device__ __forceinline__ shared::SequenceSpan& own_span() {
  char* const first = ptx::dynamic_memory() + shared::decode_mma_memory(kConfig).spans;
  return reinterpret_cast<shared::SequenceSpan*>(first)[threadIdx.x / kConfig.shape().wave];
}

}  // namespace heddle::portable
