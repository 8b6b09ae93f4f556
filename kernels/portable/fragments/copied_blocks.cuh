// The blocks of keys and values of a CTA that asynchronous copies bring to shared memory.
#pragma once

#include "portable/fragments/warp.cuh"
#include "ptx/mma.cuh"
#include "backend/portable/shared/forward_mma_memory.h"

namespace heddle::portable {

/// `Own`: the stream that is made of it. It has ask<kDim, kColumns>(source, to, pitch, first, end), which asks for the
/// rows of one block.
template <auto kConfig, class Own>
class CopiedBlocks {
 public:
  template <class Source>
  __device__ __forceinline__ void ask_keys(const Source& keys, int first, int end) {
    Own::template ask<kConfig.qk_dim, kConfig.qk_columns()>(
        keys, base_ + kMemory.k + (kMemory.stage - read_), kMemory.k_pitch, first, end);
  }
  template <class Source>
  __device__ __forceinline__ void ask_values(const Source& values, int first, int end) {
    Own::template ask<kConfig.v_dim, kConfig.v_columns()>(values, base_ + kMemory.v, kMemory.v_pitch, first, end);
  }
  /// Waits until all threads see the keys that were asked for, and have read the other buffer.
  __device__ __forceinline__ void keys_arrive() {
    read_ = kMemory.stage - read_;
    arrive();
  }
  __device__ __forceinline__ void values_arrive() const { arrive(); }
  __device__ __forceinline__ void end() const {}

 protected:
  __device__ __forceinline__ explicit CopiedBlocks(char* memory) : base_(ptx::shared_address(memory)) {}

  ptx::SharedAddress base_;
  int read_ = kMemory.stage;  // where the buffer of keys that is read begins; the other one is filled

 private:
  static constexpr shared::ForwardMmaMemory kMemory = shared::forward_mma_memory(kConfig);

  static __device__ __forceinline__ void arrive() {
    ptx::await_copies();
    WarpOfThreads::barrier();
  }
};

}  // namespace heddle::portable
