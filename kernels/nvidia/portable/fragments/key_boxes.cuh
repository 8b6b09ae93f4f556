// A block of keys on its way into shared memory by TMA, in the panels of panel_copies.cuh: each panel is a box of all
// rows and 64 columns, which one thread asks for. Rows past a sequence's end arrive as zeros, since maps end there.
#pragma once

#include "backend/portable/shared/forward_mma_config.h"
#include "ptx/tma.cuh"

namespace heddle::portable {

/// Where a block of keys is in the maps of keys.
struct BoxPlace {
  int row, end;  // from the first one of its sequence's, or page's, map; and where that ends
  int head, batch;
};

template <auto kConfig>
class KeyBoxes {
 public:
  static constexpr int kPanels = kConfig.qk_dim / 64;

  /// Before the first block, and once: where such pointers differ from path to path, NVRTC 13.0 reads memory that it
  /// has freed, and dies now and then. `Maps`: has `first` and `rest`, of the first columns and of the others
  /// (k_first).
  template <class Maps>
  __device__ __forceinline__ void set_maps(const Maps& maps) {
    first_ = reinterpret_cast<const ptx::TensorMap*>(&maps.first);
    rest_ = reinterpret_cast<const ptx::TensorMap*>(&maps.rest);
  }
  __device__ __forceinline__ void begin(const BoxPlace& place) {
    place_ = place;
    any_ = true;
  }
  /// For no block.
  __device__ __forceinline__ void begin_none() { any_ = false; }
  __device__ __forceinline__ bool any() const { return any_; }
  /// By one thread: asks for a panel of the block at `to`, whose bytes arrive at `barrier`.
  __device__ __forceinline__ void ask(ptx::Address to, int panel, ptx::Address barrier) const {
    constexpr int kFirst = kConfig.k_first / 64;
    const bool is_first = kFirst == 0 || panel < kFirst;
    ptx::tma_load_before(place_.end, to + panel * kBytes, is_first ? *first_ : *rest_, barrier,
                         (is_first ? panel : panel - kFirst) * 64, place_.row, place_.head, place_.batch,
                         ptx::kEvictNormal);
  }
  /// Bytes of a panel.
  static constexpr int kBytes = kConfig.block_keys() * 128;

 private:
  const ptx::TensorMap *first_ = nullptr, *rest_ = nullptr;
  BoxPlace place_;
  bool any_ = false;
};

}  // namespace heddle::portable
