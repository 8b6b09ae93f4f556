// The blocks of keys and values of a wave, or of the waves that share its keys, each for rows of its own: they alone
// ask for them and read them (kConfig.own_blocks).
#pragma once

#include "backend/portable/shared/forward_mma_config.h"
#include "portable/fragments/ring_slot.cuh"
#include "portable/fragments/warp.cuh"
#include "ptx/mma_sync.cuh"
#include "shared/key_runs.h"

namespace heddle::portable {

/// `Own`: the stream that is made of it. It has ask<kDim, kColumns>(source, to, pitch, first, end, begin), which asks
/// for the rows of one block, by the threads of the wave.
template <auto kConfig, class Own>
class WaveBlocks {
  static constexpr shared::ForwardMmaMemory kMemory = shared::forward_mma_memory(kConfig);

 public:
  /// Asks for the next block, of keys and values: each is a group of copies. Rows outside of `run` become 0.
  template <class Keys, class Values>
  __device__ __forceinline__ void ask_block(const Keys& keys, const Values& values, int first,
                                            const shared::KeyRun& run) {
    Own::template ask<kConfig.qk_dim, kConfig.qk_columns()>(keys, base_ + kMemory.k + asked_.at, kMemory.k_pitch, first,
                                                            run.end, run.begin);
    ptx::commit_copies();
    if constexpr (!kConfig.wide()) {
      Own::template ask<kConfig.v_dim, kConfig.v_columns()>(values, base_ + kMemory.v + asked_.at, kMemory.v_pitch,
                                                            first, run.end, run.begin);
    }
    ptx::commit_copies();
    asked_.advance();
  }
  /// In place of a block that is not there.
  __device__ __forceinline__ void skip_block() {
    ptx::commit_copies();
    ptx::commit_copies();
    asked_.advance();
  }
  /// Waits until the waves see the keys of the oldest block; then its values.
  __device__ __forceinline__ void keys_arrive() {
    ptx::await_copies<2 * kConfig.stages - 1>();
    meet();
    read_ = ring_.at;
    ring_.advance();
  }
  __device__ __forceinline__ void values_arrive() const {
    ptx::await_copies<2 * kConfig.stages - 2>();
    meet();
  }
  /// Its place may be asked for.
  __device__ __forceinline__ void block_is_read() const { meet(); }

 protected:
  __device__ __forceinline__ explicit WaveBlocks(char* memory)
      : memory_(ptx::shared_address(memory)), base_(memory_ + group() * kMemory.wave) {}

  ptx::SharedAddress memory_, base_;  // of the CTA, of the wave's ring
  int read_ = 0;                      // where the block that is read begins

 private:
  /// Which of those that share a ring.
  __device__ __forceinline__ static int group() { return WarpOfThreads::wave() / kConfig.ring_waves(); }
  /// The waves that share the ring.
  __device__ __forceinline__ static void meet() {
    if constexpr (kConfig.wide()) {
      WarpOfThreads::barrier();
    } else if constexpr (kConfig.row_waves == 1) {
      WarpOfThreads::wave_barrier();
    } else {
      ptx::barrier_of<32 * kConfig.row_waves>(1 + group());
    }
  }

  using Slot = RingSlot<kConfig.stages, kMemory.stage>;
  Slot asked_ = {0}, ring_ = {0};
};

}  // namespace heddle::portable
