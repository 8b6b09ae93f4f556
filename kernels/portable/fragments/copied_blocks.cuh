// The blocks of keys and values of a CTA that asynchronous copies bring to shared memory.
#pragma once

#include "backend/portable/shared/forward_mma_config.h"
#include "portable/fragments/ring_slot.cuh"
#include "portable/fragments/warp.cuh"
#include "ptx/mma_sync.cuh"

namespace heddle::portable {

/// `Own`: the stream that is made of it. It has ask<kDim, kColumns, type of 8 bits>(source, to, pitch, first, end),
/// which asks for the rows of one block.
template <auto kConfig, class Own>
class CopiedBlocks {
  static constexpr shared::ForwardMmaMemory kMemory = shared::forward_mma_memory(kConfig);

 public:
  template <class Source>
  __device__ __forceinline__ void ask_keys(const Source& keys, int first, int end) {
    Own::template ask<kConfig.qk_dim, kConfig.qk_columns(), kConfig.k_fp8>(
        keys, base_ + kMemory.k + (kMemory.stage - read_), kMemory.k_pitch, first, end);
  }
  template <class Source>
  __device__ __forceinline__ void ask_values(const Source& values, int first, int end) {
    Own::template ask<kConfig.v_dim, kConfig.v_columns(), kConfig.v_fp8>(values, base_ + kMemory.v, kMemory.v_pitch,
                                                                         first, end);
  }
  /// Waits until all threads see the keys that were asked for, and have read the other buffer.
  __device__ __forceinline__ void keys_arrive() {
    read_ = kMemory.stage - read_;
    arrive();
  }
  __device__ __forceinline__ void values_arrive() const { arrive(); }

  /// A ring of blocks (kConfig.rings()): asks for the next block, of keys and values.
  template <class Keys, class Values>
  __device__ __forceinline__ void ask_block(const Keys& keys, const Values& values, int first, int end) {
    Own::template ask<kConfig.qk_dim, kConfig.qk_columns(), kConfig.k_fp8>(keys, base_ + kMemory.k + asked_.at,
                                                                           kMemory.k_pitch, first, end);
    Own::template ask<kConfig.v_dim, kConfig.v_columns(), kConfig.v_fp8>(values, base_ + kMemory.v + asked_.at,
                                                                         kMemory.v_pitch, first, end);
    asked_.advance();
  }
  /// Once a step, whether it asked for a block or not.
  __device__ __forceinline__ void end_of_block() const { ptx::commit_copies(); }
  /// Waits until all threads see the oldest block that was asked for, and have read the one before.
  __device__ __forceinline__ void block_arrives() {
    ptx::await_copies<kConfig.stages - 2>();
    WarpOfThreads::barrier();
    ring_.advance();
    read_ = ring_.at;
  }
  __device__ __forceinline__ void end() const {}
  /// Values that are read from now on begin at that column of their rows. For a copy of the stream: keys would, too.
  __device__ __forceinline__ void skip_columns(int columns) { read_ += columns * kConfig.element_bytes(); }

 protected:
  __device__ __forceinline__ explicit CopiedBlocks(char* memory)
      : memory_(ptx::shared_address(memory)), base_(memory_) {}

  ptx::SharedAddress memory_, base_;  // of the CTA, of its blocks
  int read_ = kMemory.stage;          // where the buffer of keys that is read begins; the other one is filled

 private:
  using Slot = RingSlot<kConfig.stages, kMemory.stage>;
  Slot asked_ = {0}, ring_ = {(kConfig.stages - 1) * kMemory.stage};  // rings: of the next block asked for; read_

  static __device__ __forceinline__ void arrive() {
    ptx::await_copies();
    WarpOfThreads::barrier();
  }
};

}  // namespace heddle::portable
