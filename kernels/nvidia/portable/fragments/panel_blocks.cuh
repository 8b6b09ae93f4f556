// The ring of blocks of keys that all waves of a CTA share, as warpgroups multiply them (panel_copies.cuh). Each
// buffer has a barrier at which the threads' copies arrive, so nobody meets others to read a block.
#pragma once

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
  /// The next block to be asked for, by copy_panel() for each of its panels and end_of_ask() behind them. Values are
  /// the keys' first columns. Rows outside of `run` become 0.
  template <class Source>
  __device__ __forceinline__ void ask_block(const Source& keys, const Source&, int first, const shared::KeyRun& run) {
    copies_.begin(keys, first, run.end, run.begin);
  }
  /// In place of a block that is not there.
  __device__ __forceinline__ void skip_block() { copies_.begin_none(); }
  __device__ __forceinline__ void copy_panel(int panel, bool asks) const {
    copies_.ask(memory_ + kMemory.k + asked_.at, panel, asks);
  }
  __device__ __forceinline__ void copy_panels() const {
#pragma unroll
    for (int panel = 0; panel < PanelCopies<kConfig>::kPanels; ++panel) copy_panel(panel, true);
  }
  __device__ __forceinline__ void end_of_ask() {
    ptx::arrive_behind_copies(arrival(asked_));
    asked_.advance();
  }

  /// Waits until all copies of the next block to be read have arrived. The thread's products may read it then.
  __device__ __forceinline__ void arrives() {
    ptx::barrier_wait(arrival(next_), parity_);
    ptx::fence_for_tma();
    read_ = next_.at;
    next_.advance();
    if (next_.at == 0) parity_ ^= 1;
  }
  /// Until all waves have read the block: its place may be asked for.
  __device__ __forceinline__ void block_is_read() const { WarpOfThreads::barrier(); }

 protected:
  __device__ __forceinline__ explicit PanelBlocks(char* memory) : memory_(ptx::shared_address(memory)) {
    if (WarpOfThreads::thread() == 0) {
#pragma unroll
      for (int i = 0; i < kConfig.stages; ++i) ptx::barrier_init(memory_ + kMemory.arrivals + 8 * i, kConfig.threads());
      ptx::barrier_init_done();
    }
    WarpOfThreads::barrier();
  }

  ptx::SharedAddress memory_;
  int read_ = 0;  // where the block that is read begins

 private:
  using Slot = RingSlot<kConfig.stages, kMemory.stage>;
  __device__ __forceinline__ ptx::Address arrival(const Slot& slot) const {
    return memory_ + kMemory.arrivals + slot.at / kMemory.stage * 8;
  }

  PanelCopies<kConfig> copies_;
  Slot asked_ = {0}, next_ = {0};
  unsigned parity_ = 0;
};

}  // namespace heddle::portable
