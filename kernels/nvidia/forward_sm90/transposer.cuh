// Transposition of 8-bit values between the buffers that TMA fills and those that P V reads
// (shared/transposed_values.h). Two warps of the producer's warpgroup take half of the columns each, or one warp takes
// all beside a warp that gathers (forward_sm90/gather.cuh). They take one block of values after the other, in the order
// in which the producer loads them, until it announces the end.
#pragma once

#include "forward_sm90/memory.cuh"
#include "ptx/matrix_load.cuh"
#include "ptx/matrix_store.cuh"
#include "shared/transposed_values.h"

namespace heddle {

template <auto kConfig>
class Transposer {
 public:
  using Memory = SharedMemory<kConfig>;

  /// By all threads of warp number `warp` of those that transpose.
  __device__ __forceinline__ Transposer(const Memory& memory, unsigned warp)
      : memory_(memory),
        load_(shared::offset_to_load(lane(), warp)),
        store_(shared::offset_to_store(lane()) + kOtherHalf * warp) {}

  __device__ __forceinline__ void run() {
    for (ptx::Ring ring(0);; ring.advance(kConfig.stages)) {
      ptx::barrier_wait(memory_.loaded_full(ring.slot), ring.parity);
      if (ptx::load_word(memory_.end(ring.slot)) != 0) break;
      ptx::barrier_wait(memory_.v_empty(ring.slot), ring.parity ^ 1);
      __syncwarp();
      transpose(memory_.loaded_values(ring.slot) + load_, memory_.values(ring.slot) + store_);
      if constexpr (kConfig.transposers() == 1) {
        transpose(memory_.loaded_values(ring.slot) + (load_ ^ 16), memory_.values(ring.slot) + store_ + kOtherHalf);
      }
      // Products read what was written, and TMA overwrites what was read.
      ptx::fence_for_tma();
      __syncwarp();
      if (lane() == 0) {
        ptx::barrier_arrive(memory_.v_full(ring.slot));
        ptx::barrier_arrive(memory_.loaded_empty(ring.slot));
      }
    }
  }

 private:
  static constexpr int kSixteens = kConfig.transposed_rows() / 32;  // of columns, of each half of them
  static constexpr ptx::Address kOtherHalf = 16 * shared::kSlots;   // from one half's first sixteen to the other's
  static constexpr int kAtOnce = kSixteens % 4 == 0   ? (kSixteens == 4 ? 4 : 2)
                                 : kSixteens % 3 == 0 ? 3
                                 : kSixteens % 2 == 0 ? 2
                                                      : 1;

  __device__ __forceinline__ static unsigned lane() { return threadIdx.x & 31; }

  __device__ __forceinline__ void transpose(ptx::Address from, ptx::Address to) const {
    const unsigned even = shared::bytes_of_word(lane(), 0), odd = shared::bytes_of_word(lane(), 1);
#pragma unroll 1
    for (int step = 0; step < kConfig.kv_block / shared::kSlots; ++step) {
#pragma unroll
      for (int first = 0; first < kSixteens; first += kAtOnce) {
        unsigned loaded[kAtOnce][4];
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) load(loaded[i], from, first + i);
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          const unsigned(&pairs)[4] = loaded[i];
          const unsigned words[4] = {__byte_perm(pairs[0], pairs[1], even), __byte_perm(pairs[0], pairs[1], odd),
                                     __byte_perm(pairs[2], pairs[3], even), __byte_perm(pairs[2], pairs[3], odd)};
          ptx::store_matrices(to + (first + i) * 2 * 16 * shared::kSlots, words);
        }
      }
      from += shared::kSlots * 128;
      to += kConfig.transposed_rows() * shared::kSlots;
    }
  }

  /// A half's columns number `sixteen`: two of 16, one of them the other half's, take 32 bytes of a panel's rows.
  __device__ __forceinline__ static void load(unsigned (&pairs)[4], ptx::Address from, int sixteen) {
    ptx::load_transposed((from ^ (32 * (sixteen % 4))) + sixteen / 4 * kConfig.kv_block * 128, pairs);
  }

  const Memory& memory_;
  ptx::Address load_, store_;  // this thread's, in a block of values and in a transposed one
};

}  // namespace heddle
