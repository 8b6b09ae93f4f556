// The key blocks that a tile walks, and the tile of an item of the list.
#pragma once

#include "families/forward_mma/shared/forward_mma_params.h"
#include "portable/rows/tile.cuh"

namespace heddle::portable {

/// The steps of a tile from number `first` on, `left` of them.
class Walk {
 public:
  __device__ __forceinline__ Walk(const shared::KvRun* runs, const shared::WorkItem& item, int first, int left)
      : runs_(runs + item.first_run), run_(item.run), left_(left) {
    if (left <= 0) return;
    while (first >= run_.end - run_.begin) {
      first -= run_.end - run_.begin;
      run_ = *++runs_;
    }
    run_.begin += first;
  }
  __device__ __forceinline__ bool any() const { return left_ > 0; }
  __device__ __forceinline__ int left() const { return left_; }
  __device__ __forceinline__ int block() const { return run_.begin; }
  __device__ __forceinline__ int flags() const { return run_.flags; }
  __device__ __forceinline__ void next() {
    if (--left_ > 0 && ++run_.begin == run_.end) run_ = *++runs_;
  }

 private:
  const shared::KvRun* runs_;  // the one that is walked
  shared::KvRun run_;          // what is left of it
  int left_;
};

/// An item's tile.
template <auto kConfig>
__device__ __forceinline__ Tile<kConfig> tile_of(const shared::ForwardMmaParams& params, const shared::WorkItem& item) {
  Tile<kConfig> tile(item.batch, item.head, item.kv_head, item.q_tile * kConfig.tile().queries(), params.group,
                     params.mod);
  if constexpr (kConfig.by_sequence) tile.stand_at(params.mod.sequences[item.batch]);
  if constexpr (kConfig.listed_pages) tile.first_entry = shared::first_entry(params.table, item.batch);
  return tile;
}

}  // namespace heddle::portable
