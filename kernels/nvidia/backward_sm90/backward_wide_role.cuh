// The warpgroups of scores and of gradients of a pair's CTA: both hold the CTA's 64 keys x 64 queries of a step, thread
// by thread.
#pragma once

#include "backward_sm90/backward_keys.cuh"
#include "backward_sm90/backward_wide_products.cuh"
#include "backward_sm90/wide_memory.cuh"

namespace heddle {

template <auto kConfig>
class WideRole : public BackwardKeys<kConfig, WideMemory<kConfig>, WideRole<kConfig>> {
 public:
  using Base = BackwardKeys<kConfig, WideMemory<kConfig>, WideRole<kConfig>>;
  using typename Base::Memory, typename Base::Numbers, typename Base::Params, typename Base::Weights;

  __device__ __forceinline__ WideRole(const Memory& memory, const Params& params, int rank)
      : Base(memory, params, rank), steps_(__shfl_sync(~0U, word(shared::kTileSteps), 0)) {
    this->ragged_keys_ = this->kv_first() + 64 * (rank + 1) > word(shared::kTileKvLen);
  }

  __device__ __forceinline__ int word(unsigned offset) const { return this->memory_.tile_word(offset); }

 protected:
  __device__ __forceinline__ static int own_thread() { return static_cast<int>(threadIdx.x & 127); }
  __device__ __forceinline__ static int lane_offset() { return 4 * shared::offset_of_lane(threadIdx.x & 31); }

  /// Flags of a step: one value for the warp, which the compiler knows.
  __device__ __forceinline__ int flags_of(int slot) const {
    int flags = this->memory_.step_word(slot, shared::kStepFlags);
    if constexpr (kConfig.lse_rest) flags |= this->memory_.far_flag(slot);
    return __shfl_sync(~0U, flags, 0);
  }

  /// The warp has read a buffer of Q or dO. `empty`: its barrier.
  __device__ __forceinline__ void give_back(ptx::Address empty) const {
    ptx::barrier_arrive_by_warp(empty);
    if constexpr (kConfig.shared_loads) {
      if ((threadIdx.x & 31) == 0) ptx::barrier_arrive_there(ptx::address_in(this->warpgroup_ ^ 1, empty));
    }
  }

  /// Stores dK (`tensor` 1) or dV (0) of the thread's keys; of a tile that pairs share, the last one does. `stage`:
  /// memory for 64 keys x all columns that nothing else needs any more.
  template <shared::StorageType kType, int kCount>
  __device__ __forceinline__ void leave(const shared::RowOutput& out, int tensor, int dim, float (&d)[kCount],
                                        float factor, ptx::Address stage) const {
    if constexpr (kConfig.device_lengths) {
      if (steps_ < 0) return;  // no tile
    }
    if (!this->adds_shares(out, tensor, d)) return;
    this->template store<kType, true>(out, dim, d, factor, steps_ > 0, stage);
  }

  int steps_;
};

}  // namespace heddle
