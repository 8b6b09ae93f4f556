// The warpgroup of queries: the CTA's panels of dQ = dS K, over the keys of both CTAs of the pair. The threads add them
// to dQ's sums (d_q_added), or panels leave by pieces of 32 columns, which other threads add.
#pragma once

#include "backward_sm90/backward_wide_products.cuh"
#include "backward_sm90/wide_memory.cuh"
#include "backward_sm90/wide_steps.cuh"
#include "ptx/cluster.cuh"
#include "ptx/float_sums.cuh"

namespace heddle {

template <auto kConfig>
class WideQueries {
 public:
  using Memory = WideMemory<kConfig>;

  using Params = shared::BackwardSm90Params;

  __device__ __forceinline__ WideQueries(const Memory& memory, const Params& params, int rank)
      : memory_(memory), params_(params), rank_(rank) {}

  __device__ __forceinline__ void run() {
    const int steps = __shfl_sync(~0U, memory_.tile_word(shared::kTileSteps), 0);
    if (steps <= 0) return;
    ptx::barrier_wait(memory_.k_full(), 0);
    ptx::barrier_wait(memory_.peer_k_full(), 0);
    ptx::forget(d_q_);
    if constexpr (kConfig.d_q_added) {
      visit_wide_steps<kConfig>(memory_, params_, [&](int number, long long block) {
        multiply(number, params_.d_q + block * (kConfig.panels() * shared::kPartFloats));
      });
    } else {
#pragma unroll 1
      for (int number = 0; number < steps; ++number) multiply(number, nullptr);
    }
  }

 private:
  /// A step. `sums`: dQ's of its block, if this warpgroup adds to them.
  __device__ __forceinline__ void multiply(int number, float* sums) {
    ptx::barrier_wait(memory_.d_s_stored(), number & 1);
    ptx::barrier_wait(memory_.d_s_copied(), number & 1);
    ptx::fence_for_tma();  // behind the stores of the warpgroup of gradients
    const int border = shared::wide_d_q_border(kConfig, number);
    const int first = rank_ == 0 ? 0 : border, end = rank_ == 0 ? border : kConfig.qk_panels();
#pragma unroll 1
    for (int panel = first; panel < end; ++panel) {
      compute(panel);
      if (panel + 1 == end) give_back();
      if constexpr (kConfig.d_q_added) {
        add(sums + panel * shared::kPartFloats);
      } else {
        leave();
      }
    }
    if (first == end) give_back();
  }
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
  __device__ __forceinline__ void give_back() const {
    __syncwarp();
    if ((threadIdx.x & 31) != 0) return;
    ptx::barrier_arrive(memory_.d_s_empty());
    ptx::barrier_arrive_there(ptx::address_in(rank_ ^ 1, memory_.d_s_empty()));
  }
  /// Adds a panel to its sums, which stand as its pieces would. A warp adds 512 neighbouring bytes at a time.
  __device__ __forceinline__ void add(float* to) const {
    to += 4 * (threadIdx.x & 127);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const float four[4] = {d_q_[4 * j], d_q_[4 * j + 1], d_q_[4 * j + 2], d_q_[4 * j + 3]};
      ptx::add_floats(to + j * (128 * 4), four);
    }
  }
  /// Pieces of a panel, each in its buffer.
  __device__ __forceinline__ void leave() {
#pragma unroll
    for (int piece = 0; piece < shared::kWidePieces; ++piece) {
      ptx::barrier_wait(memory_.d_q_empty(piece), parity_);
      const ptx::Address to = memory_.d_q(piece) + 16 * (threadIdx.x & 127);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int i = 16 * piece + 4 * j;
        ptx::store_floats(to + j * (128 * 16), d_q_[i], d_q_[i + 1], d_q_[i + 2], d_q_[i + 3]);
      }
      ptx::barrier_arrive_by_warp(memory_.d_q_full(piece));
    }
    parity_ ^= 1;
  }

  const Memory& memory_;
  const Params& params_;
  int rank_;
  unsigned parity_ = 1;
  float d_q_[32];  // registers: 64 queries x 64 columns
};

}  // namespace heddle
