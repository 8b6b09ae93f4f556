// The warpgroup of queries: the CTA's panels of dQ = dS K, over the keys of both CTAs of the pair. They leave by pieces
// of 32 columns.
#pragma once

#include "backward_sm90/backward_wide_products.cuh"
#include "backward_sm90/wide_memory.cuh"
#include "ptx/cluster.cuh"

namespace heddle {

template <auto kConfig>
class WideQueries {
 public:
  using Memory = WideMemory<kConfig>;

  __device__ __forceinline__ WideQueries(const Memory& memory, int rank) : memory_(memory), rank_(rank) {}

  __device__ __forceinline__ void run() {
    const int steps = __shfl_sync(~0U, memory_.tile_word(shared::kTileSteps), 0);
    if (steps <= 0) return;
    ptx::barrier_wait(memory_.k_full(), 0);
    ptx::barrier_wait(memory_.peer_k_full(), 0);
    ptx::forget(d_q_);
    const ptx::Address empty_there = ptx::address_in(rank_ ^ 1, memory_.d_s_empty());
    unsigned parity = 1;
#pragma unroll 1
    for (int number = 0; number < steps; ++number) {
      ptx::barrier_wait(memory_.d_s_stored(), number & 1);
      ptx::barrier_wait(memory_.d_s_copied(), number & 1);
      ptx::fence_for_tma();  // behind the stores of the warpgroup of gradients
      const int border = shared::wide_d_q_border(kConfig, number);
      const int first = rank_ == 0 ? 0 : border, end = rank_ == 0 ? border : kConfig.qk_panels();
#pragma unroll 1
      for (int panel = first; panel < end; ++panel, parity ^= 1) {
        compute(panel);
        if (panel + 1 == end) give_back(empty_there);
        leave(parity);
      }
      if (first == end) give_back(empty_there);
    }
  }

 private:
  /// A panel, over the keys of both CTAs.
  __device__ __forceinline__ void compute(int panel) {
    const int of_peer = panel - shared::wide_first_peer_panel(kConfig, rank_);
    const ptx::Address keys[2] = {memory_.keys() + panel * Memory::kPanel,
                                  memory_.peer_keys() + of_peer * Memory::kPanel};
    const ptx::Address d_s[2] = {memory_.d_s(rank_), memory_.d_s(rank_ ^ 1)};
    issue_wide_queries(d_q_, d_s, keys);
    ptx::wgmma_wait<0>();
    ptx::touch(d_q_);
  }
  /// dS of both CTAs' keys has been read here.
  __device__ __forceinline__ void give_back(ptx::Address empty_there) const {
    __syncwarp();
    if ((threadIdx.x & 31) != 0) return;
    ptx::barrier_arrive(memory_.d_s_empty());
    ptx::barrier_arrive_there(empty_there);
  }
  /// Pieces of a panel, each in its buffer.
  __device__ __forceinline__ void leave(unsigned parity) const {
#pragma unroll
    for (int piece = 0; piece < shared::kWidePieces; ++piece) {
      ptx::barrier_wait(memory_.d_q_empty(piece), parity);
      const ptx::Address to = memory_.d_q(piece) + 16 * (threadIdx.x & 127);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int i = 16 * piece + 4 * j;
        ptx::store_floats(to + j * (128 * 16), d_q_[i], d_q_[i + 1], d_q_[i + 2], d_q_[i + 3]);
      }
      ptx::barrier_arrive_by_warp(memory_.d_q_full(piece));
    }
  }

  const Memory& memory_;
  int rank_;
  float d_q_[32];  // registers: 64 queries x 64 columns
};

}  // namespace heddle
