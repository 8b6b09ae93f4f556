// The streamer: one thread that loads the tiles of a streamed capture. It follows the steps that the producer leaves
// with the keys, as the consumers do, but runs ahead of them as far as its buffers reach. (In the producer itself it
// would spill: a kernel with three consumers leaves it 32 registers.)
#pragma once

#include "ptx/tma.cuh"
#include "shared/mod_values.h"
#include "forward_sm90/memory.cuh"

namespace heddle {

template <auto kConfig>
class Streamer {
 public:
  using Memory = SharedMemory<kConfig>;

  /// The maps of a tile's panels and of its rest's.
  __device__ __forceinline__ Streamer(const Memory& memory, const ptx::TensorMap& map, const ptx::TensorMap& rest_map,
                                      const shared::ModValues& mod)
      : memory_(memory), map_(map), rest_map_(rest_map), mod_(mod) {}

  __device__ __forceinline__ void run() {
    bool new_tile = true;
    for (;;) {
      ptx::barrier_wait(memory_.k_full(k_.slot), k_.parity);
      const shared::Step step = ptx::load_word(memory_.step(k_.slot));
      if (step & shared::kStepStop) break;
      if (new_tile) begin_tile();
      ptx::barrier_arrive(memory_.k_empty(k_.slot));
      k_.advance(kConfig.stages);
      load(step);
      new_tile = (step & shared::kStepLast) != 0;
      if (kConfig.packs() && new_tile) ++tile_;
    }
  }

 private:
  __device__ __forceinline__ void begin_tile() {
    const ptx::Address origin = memory_.origin(tile_);
    int head = 0, batch = 0;
    if constexpr (!kConfig.packs()) {
      head = ptx::load_word(origin + shared::kOriginHead);
      batch = ptx::load_word(origin + shared::kOriginBatch);
    }
    const int q_start =
        kConfig.by_sequence ? ptx::load_word(memory_.sequence(tile_) + shared::kSequenceQStart) : mod_.q_start;
    q_idx_ = q_start + ptx::load_word(origin);
    if constexpr (!kConfig.packs()) {
      find_axes(batch, head);
      ++tile_;
    }
  }

  /// Where the tile of a head stands in the capture's other axes.
  __device__ __forceinline__ void find_axes(int batch, int head) {
    axes_[0] = streamed_axis(mod_, 0, batch, head);
    axes_[1] = streamed_axis(mod_, 1, batch, head);
  }

  /// Packed: the head of part `part` of warpgroup w's rows; rows past the last head have its queries. (A tile's
  /// record stays in shared memory, and is read where it is used: registers are few.)
  __device__ __forceinline__ int packed_head(int w, int part) const {
    return min(ptx::load_word(memory_.origin(tile_) + shared::kOriginHead) + w * kConfig.warpgroup_heads() + part,
               ptx::load_word(memory_.heads_end(tile_)) - 1);
  }

  /// For the warpgroups that attend the step. The others get theirs unfilled: one count of tiles serves all.
  __device__ __forceinline__ void load(shared::Step step) {
    const int kv_first = (step >> shared::kStepFlagBits) * kConfig.kv_block;
    if constexpr (kConfig.streamed_parts > 1) {
      load_parts(step, kv_first);
    } else {
#pragma unroll 1
      for (int w = 0; w < kConfig.warpgroups; ++w) {
        const ptx::Address full = memory_.streamed_full(streamed_.slot, w), to = memory_.streamed(streamed_.slot, w);
        ptx::barrier_wait(memory_.streamed_empty(streamed_.slot, w), streamed_.parity);
        if (!(step & (shared::kStepAttends << w))) {
          ptx::barrier_arrive(full);
          continue;
        }
        ptx::barrier_arrive_expecting(full, Memory::kStreamedBytes);
        load_panels<kConfig.streamed_panels(), kConfig.streamed_panel_columns()>(to, map_, full, kv_first, w);
        constexpr int kWhole = kConfig.streamed_panels();
        load_panels<kConfig.streamed_rest_panels(), shared::kStreamedRestColumns>(
            to + kWhole * 64 * 128, rest_map_, full, kv_first + kWhole * kConfig.streamed_panel_columns(), w);
      }
      streamed_.advance(kConfig.streamed_stages);
    }
  }

  /// A warpgroup's parts follow each other: it gives them back so.
  __device__ __forceinline__ void load_parts(shared::Step step, int kv_first) {
    constexpr int kColumns = kConfig.streamed_columns();
    static_assert(kConfig.streamed_parts == 1 || kColumns % kConfig.streamed_panel_columns() == 0);
    ptx::Ring ring = streamed_;  // each warpgroup's is the same
#pragma unroll 1
    for (int w = 0; w < kConfig.warpgroups; ++w) {
      ring = streamed_;
#pragma unroll 1
      for (int first = kv_first; first < kv_first + kConfig.kv_block; first += kColumns) {
        const ptx::Address full = memory_.streamed_full(ring.slot, w);
        ptx::barrier_wait(memory_.streamed_empty(ring.slot, w), ring.parity);
        if (step & (shared::kStepAttends << w)) {
          ptx::barrier_arrive_expecting(full, Memory::kStreamedBytes);
          load_panels<kConfig.streamed_panels(), kConfig.streamed_panel_columns()>(memory_.streamed(ring.slot, w), map_,
                                                                                   full, first, w);
        } else {
          ptx::barrier_arrive(full);
        }
        ring.advance(kConfig.streamed_stages);
      }
    }
    streamed_ = ring;
  }

  template <int kPanels, int kColumns>
  __device__ __forceinline__ void load_panels(ptx::Address to, const ptx::TensorMap& map, ptx::Address full,
                                              int kv_first, int w) {
    constexpr int kRow = kColumns * kConfig.streamed_bytes;
    if constexpr (kConfig.packs()) {
#pragma unroll 1
      for (int part = 0; part < kConfig.warpgroup_heads(); ++part) {
        const int head = packed_head(w, part);
        find_axes(ptx::load_word(memory_.origin(tile_) + shared::kOriginBatch), head);
#pragma unroll 1
        for (int panel = 0; panel < kPanels; ++panel) {
          ptx::tma_load(to + panel * (64 * kRow) + part * (kConfig.streamed_box() * kRow), map, full,
                        kv_first + panel * kColumns, q_idx_, axes_[0], axes_[1], ptx::kEvictNormal);
        }
      }
    } else {
      for (int panel = 0; panel < kPanels; ++panel) {
        ptx::tma_load(to + panel * (64 * kRow), map, full, kv_first + panel * kColumns, q_idx_ + 64 * w, axes_[0],
                      axes_[1], ptx::kEvictNormal);
      }
    }
  }

  const Memory& memory_;
  const ptx::TensorMap &map_, &rest_map_;
  const shared::ModValues& mod_;
  ptx::Ring k_{0}, streamed_{1};
  unsigned tile_ = 0;  // tiles begun; packed: ended, so that it is the number of the one in work
  int q_idx_ = 0;      // of the tile's first row
  int axes_[2] = {};   // where its head stands in the capture's other axes
};

}  // namespace heddle
