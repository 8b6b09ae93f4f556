// The warpgroup of queries, where dQ has one of its own: dQ = dS K of each step, over the keys of all consumers. It
// leaves by two buffers in turns, each with a thread that adds it to memory (backward_sm90/backward_producer.cuh).
#pragma once

#include "backward_sm90/backward_memory.cuh"
#include "backward_sm90/backward_products.cuh"
#include "backward_sm90/d_q_conversion.cuh"
#include "ptx/shared_words.cuh"

namespace heddle {

template <auto kConfig>
class BackwardQueries {
 public:
  using Memory = BackwardMemory<kConfig>;
  using Params = shared::BackwardSm90Params;
  static_assert(kConfig.d_q_columns() == shared::kPanelColumns && shared::kDsBuffers == shared::kDqBuffers);

  __device__ __forceinline__ BackwardQueries(const Memory& memory, const Params& params)
      : memory_(memory), params_(params) {}

  __device__ __forceinline__ void run() {
    if constexpr (kConfig.ring) store_zeros();
    int number = 0;  // of the step, among those of all tiles
    for (ptx::PackedRing tiles(0);; tiles.advance(kConfig.tile_buffers())) {
      const int tile = slot_of(tiles);
      ptx::barrier_wait(memory_.tile_full(tile), parity_of(tiles));
      const int steps = __shfl_sync(~0U, memory_.tile_word(tile, shared::kTileSteps), 0);
      if (steps < 0) break;
      if constexpr (kConfig.ring) {  // while the consumers have the tile's first step
        DqConverter<kConfig>(memory_, params_, tile, 0).run();
        ptx::barrier_arrive_by_warp(memory_.converted());
      }
      ptx::barrier_wait(memory_.k_full(tile), parity_of(tiles));
#pragma unroll 1
      for (const int end = number + steps; number < end; ++number) {
        compute(number, tile);
        leave(number);
      }
      ptx::barrier_arrive_by_warp(memory_.tile_empty(tile));
    }
  }

 private:
  /// Where TMA finds them.
  __device__ __forceinline__ void store_zeros() const {
#pragma unroll 1
    for (int at = 16 * static_cast<int>(threadIdx.x & 127); at < shared::kPartBytes; at += 16 * 128) {
      ptx::store_zeros(memory_.zeros() + at);
    }
    ptx::fence_for_tma();
  }

  /// How often a buffer has been used before, as the parity of its barriers.
  __device__ __forceinline__ static unsigned parity(int number) { return number / shared::kDsBuffers & 1; }

  __device__ __forceinline__ void compute(int number, int tile) {
    const int buffer = number % shared::kDsBuffers;
    ptx::barrier_wait(memory_.d_s_full(buffer), parity(number));
    ptx::fence_for_tma();  // behind the consumers' stores
    ptx::forget(d_q_);
    issue_queries<kConfig>(d_q_, memory_.d_s(buffer, 0), memory_.keys(tile));
    ptx::wgmma_wait<0>();
    ptx::touch(d_q_);
    ptx::barrier_arrive_by_warp(memory_.d_s_empty(buffer));
  }
  __device__ __forceinline__ void leave(int number) const {
    const int buffer = number % shared::kDqBuffers;
    ptx::barrier_wait(memory_.d_q_empty(buffer), parity(number) ^ 1);
    const ptx::Address to = memory_.d_q(buffer) + 16 * (threadIdx.x & 127);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      ptx::store_floats(to + j * (128 * 16), d_q_[4 * j], d_q_[4 * j + 1], d_q_[4 * j + 2], d_q_[4 * j + 3]);
    }
    ptx::barrier_arrive_by_warp(memory_.d_q_full(buffer));
  }

  const Memory& memory_;
  const Params& params_;
  float d_q_[32];  // registers: 64 queries x 64 columns
};

}  // namespace heddle
