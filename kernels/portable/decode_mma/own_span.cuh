// Where mods read the numbers of a sequence whose lengths are on the device: a place of each wave in shared memory, or
// the sequences near it, if tiles have rows of several. In the workspace all waves would write the same numbers at
// once, and page numbers that are read behind them came up to 20 us late.
#pragma once

#include "families/decode_mma/shared/decode_mma_memory.h"
#include "ptx/mma_sync.cuh"

namespace heddle::portable {

template <auto kConfig>
__device__ __forceinline__ shared::SequenceSpan& own_span() {
  char* const first = ptx::dynamic_memory() + shared::decode_mma_memory(kConfig).spans;
  return reinterpret_cast<shared::SequenceSpan*>(first)[threadIdx.x / kConfig.shape().wave];
}

template <auto kConfig>
__device__ __forceinline__ shared::PrefixTable& near_sequences() {
  return *reinterpret_cast<shared::PrefixTable*>(ptx::dynamic_memory() + shared::decode_mma_memory(kConfig).spans);
}
/// The numbers of sequence b, whose row a tile has.
template <auto kConfig>
__device__ __forceinline__ const shared::SequenceSpan& near_span(int b) {
  return near_sequences<kConfig>().spans[b % shared::kNearSequences];
}

}  // namespace heddle::portable
