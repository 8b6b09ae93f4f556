// Rings of blocks as warpgroups multiply them (panel_copies.cuh): of keys that are values, too, which all waves of a
// CTA share (wide()); or of keys and values, each warpgroup's own. Each buffer has a barrier. The copies of threads, or
// of TMA (config.boxes), arrive there, so that waves need not meet to read a block.
#pragma once

#include "portable/fragments/key_boxes.cuh"
#include "portable/fragments/panel_copies.cuh"
#include "portable/fragments/ring_slot.cuh"
#include "ptx/cp_async.cuh"
#include "shared/key_runs.h"

namespace heddle::portable {

template <auto kConfig>
class PanelBlocks {
 protected:
  static constexpr shared::ForwardMmaMemory kMemory = shared::forward_mma_memory(kConfig);

 public:
  /// The next block to be asked for, by copy_panels() and end_of_ask() behind it. Rows outside of `run` become 0.
  template <class Keys, class Values>
  __device__ __forceinline__ void ask_block(const Keys& keys, const Values& values, int first,
                                            const shared::KeyRun& run) {
    keys_.begin(keys, first, run.end, run.begin);
    if constexpr (!kConfig.wide()) values_.begin(values, first, run.end, run.begin);
  }
  /// config.boxes: before the first block.
  template <class Maps>
  __device__ __forceinline__ void set_maps(const Maps& maps) {
    boxes_.set_maps(maps);
  }
  /// config.boxes: as ask_block(), of a run that begins with the block or before.
  __device__ __forceinline__ void ask_box(const BoxPlace& place) { boxes_.begin(place); }
  /// In place of a block that is not there.
  __device__ __forceinline__ void skip_block() {
    if constexpr (kConfig.boxes) return boxes_.begin_none();
    keys_.begin_none();
    if constexpr (!kConfig.wide()) values_.begin_none();
  }
  /// Asks for the block's panels. takes_turns(): a warpgroup asks for those of its own columns of the values, which no
  /// other warpgroup has read since the scores of the block before were computed; columns that are no values are asked
  /// for by the warpgroup whose block it is.
  __device__ __forceinline__ void copy_panels() const {
    const ptx::SharedAddress keys = base() + kMemory.k + asked_.at;
    if constexpr (kConfig.boxes) return ask_boxes(keys);
    if constexpr (kConfig.takes_turns()) {
      constexpr int kOwn = ValueCopies::kPanels / 2;
#pragma unroll
      for (int panel = 0; panel < kOwn; ++panel) keys_.ask(keys, panel, kOwn + panel, warpgroup() == 1);
      if (turn_of(asked_) != warpgroup()) return;
#pragma unroll
      for (int panel = 2 * kOwn; panel < KeyCopies::kPanels; ++panel) keys_.ask(keys, panel);
      return;
    }
#pragma unroll
    for (int panel = 0; panel < KeyCopies::kPanels; ++panel) keys_.ask(keys, panel);
    if constexpr (!kConfig.wide()) {
#pragma unroll
      for (int panel = 0; panel < ValueCopies::kPanels; ++panel) {
        values_.ask(base() + kMemory.v + asked_.at, panel);
      }
    }
  }
  __device__ __forceinline__ void end_of_ask() {
    if constexpr (!kConfig.boxes) ptx::arrive_behind_copies(arrival(asked_));
    asked_.advance();
  }

  /// Waits until all copies of the next block to be read have arrived. The thread's products may read it then.
  __device__ __forceinline__ void arrives() {
    ptx::barrier_wait(arrival(next_), parity_);
    if constexpr (!kConfig.boxes) ptx::fence_for_tma();
    read_ = pass();
  }
  /// The next block is not waited for. Where it is.
  __device__ __forceinline__ int pass() {
    const int at = next_.at;
    next_.advance();
    if (next_.at == 0) parity_ ^= 1;
    return at;
  }
  /// takes_turns(): the warpgroup computes the scores of the next block.
  __device__ __forceinline__ bool has_turn() const { return turn_of(next_) == warpgroup(); }
  /// Waits until all waves of the warpgroup have read the block, so that its memory may be copied to.
  __device__ __forceinline__ void block_is_read() const { ptx::barrier_of<128>(kRead + warpgroup()); }

 protected:
  __device__ __forceinline__ explicit PanelBlocks(char* memory) : memory_(ptx::shared_address(memory)) {
    if (WarpOfThreads::thread() == 0) {
#pragma unroll
      for (int i = 0; i < kConfig.rings_of_blocks() * kConfig.stages; ++i) {
        // Boxes are asked for by a thread of each warpgroup.
        ptx::barrier_init(memory_ + kMemory.arrivals + 8 * i, kConfig.boxes ? 2 : 32 * kConfig.ring_waves());
      }
      ptx::barrier_init(queries_arrival(), 32 * kConfig.waves());
      ptx::barrier_init_done();
    }
    WarpOfThreads::barrier();
  }
  /// The barrier at which copies of the queries arrive.
  __device__ __forceinline__ ptx::Address queries_arrival() const {
    return memory_ + kMemory.arrivals + 8 * kConfig.rings_of_blocks() * kConfig.stages;
  }
  /// The first barrier's number of the warpgroups'; behind those of the waves of a tile's rows (WideRows).
  static constexpr int kRead = 5;
  __device__ __forceinline__ static int warpgroup() { return WarpOfThreads::wave() / 4; }
  /// Where the ring begins.
  __device__ __forceinline__ ptx::SharedAddress base() const { return memory_ + group() * kMemory.wave; }

  ptx::SharedAddress memory_;
  int read_ = 0;  // where the block that is read begins

 private:
  using KeyCopies = PanelCopies<kConfig>;
  using ValueCopies = PanelCopies<kConfig, kConfig.v_dim, 0>;
  using Slot = RingSlot<kConfig.stages, kMemory.stage>;
  /// The warpgroup whose turn the block of a place is.
  __device__ __forceinline__ static int turn_of(const Slot& slot) {
    static_assert(!kConfig.takes_turns() || kConfig.stages % 2 == 0);
    return slot.at / kMemory.stage % 2;
  }
  /// Which of those that share a ring.
  __device__ __forceinline__ static int group() { return kConfig.rings_of_blocks() == 1 ? 0 : warpgroup(); }
  __device__ __forceinline__ ptx::Address arrival(const Slot& slot) const {
    return memory_ + kMemory.arrivals + (group() * kConfig.stages + slot.at / kMemory.stage) * 8;
  }

  /// By one thread of the warpgroup: its panels of the block at `keys`.
  __device__ __forceinline__ void ask_boxes(ptx::SharedAddress keys) const {
    constexpr int kOwn = ValueCopies::kPanels / 2, kRest = Boxes::kPanels - 2 * kOwn;
    const ptx::Address barrier = arrival(asked_);
    const int own = warpgroup();  // by the whole warp
    const bool has_rest = turn_of(asked_) == own;
    if (WarpOfThreads::thread() % 128 != 0) return;
    const int panels = boxes_.any() ? kOwn + (has_rest ? kRest : 0) : 0;
    ptx::barrier_arrive_expecting(barrier, static_cast<unsigned>(panels * Boxes::kBytes));
    if (!boxes_.any()) return;
#pragma unroll
    for (int panel = 0; panel < kOwn; ++panel) boxes_.ask(keys, own * kOwn + panel, barrier);
    if (!has_rest) return;
#pragma unroll
    for (int panel = 2 * kOwn; panel < Boxes::kPanels; ++panel) boxes_.ask(keys, panel, barrier);
  }

  using Boxes = KeyBoxes<kConfig>;
  Boxes boxes_;  // config.boxes: instead of both
  KeyCopies keys_;
  ValueCopies values_;  // unless wide()
  Slot asked_ = {0}, next_ = {0};
  unsigned parity_ = 0;
};

}  // namespace heddle::portable
