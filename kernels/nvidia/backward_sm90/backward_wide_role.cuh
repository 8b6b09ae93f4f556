// Shared by the warpgroups of scores and of gradients: where their elements lie. Both hold the same 64 keys x 64
// queries of a step, thread by thread.
#pragma once

#include "backward_sm90/backward_output.cuh"
#include "backward_sm90/backward_wide_products.cuh"
#include "backward_sm90/wide_memory.cuh"
#include "fragments/transposed_weights.cuh"
#include "ptx/tma.cuh"

namespace heddle {

template <auto kConfig>
class WideRole {
 public:
  using Memory = WideMemory<kConfig>;
  using Params = shared::BackwardSm90Params;
  using Weights = TransposedWeights<kConfig, Params>;
  using Numbers = typename Weights::Numbers;
  // Mods of each score look at where it is.
  static constexpr bool kNeedsOrigin =
      kConfig.scores != shared::ScoreForm::plain || kConfig.weighted || kConfig.dropped;

  __device__ __forceinline__ WideRole(const Memory& memory, const Params& params, int rank)
      : memory_(memory),
        params_(params),
        rank_(rank),
        steps_(__shfl_sync(~0U, word(shared::kTileSteps), 0)),
        ragged_keys_(kv_first() + 64 * (rank + 1) > word(shared::kTileKvLen)) {}

 protected:
  __device__ __forceinline__ int word(unsigned offset) const { return memory_.tile_word(offset); }
  __device__ __forceinline__ static void release(ptx::Address empty) {
    __syncwarp();  // all its threads have read, or written
    if ((threadIdx.x & 31) == 0) ptx::barrier_arrive(empty);
  }
  __device__ __forceinline__ static int own_thread() { return static_cast<int>(threadIdx.x & 127); }
  __device__ __forceinline__ static int lane_offset() { return 4 * shared::offset_of_lane(threadIdx.x & 31); }

  /// The thread's first key, in the tile.
  __device__ __forceinline__ int own_key() const {
    return 64 * rank_ + 16 * static_cast<int>((threadIdx.x >> 5) & 3) + static_cast<int>((threadIdx.x & 31) >> 2);
  }
  __device__ __forceinline__ int kv_first() const { return word(shared::kTileKvTile) * kConfig.keys(); }
  __device__ __forceinline__ TransposedOrigin origin(int slot) const {
    return {word(shared::kTileBatch), memory_.step_word(slot, shared::kStepHead),
            memory_.step_word(slot, shared::kStepQFirst) + 2 * static_cast<int>(threadIdx.x & 3) +
                word(shared::kTileQStart),
            kv_first() + own_key()};
  }

  /// Flags of a step: one value for the warp, which the compiler knows.
  __device__ __forceinline__ int flags_of(int slot) const {
    int flags = memory_.step_word(slot, shared::kStepFlags);
    if constexpr (kConfig.lse_rest) flags |= memory_.far_flag(slot);
    return __shfl_sync(~0U, flags, 0);
  }
  /// Some elements of the step do not attend, or may not.
  __device__ __forceinline__ bool bits_matter(int flags) const {
    const int decided = shared::kStepRagged | (kConfig.masked ? shared::kStepPartial << rank_ : 0) |
                        (kConfig.lse_rest ? shared::kStepFar : 0);
    return (flags & decided) != 0 || !(flags & (shared::kStepAttends << rank_)) || ragged_keys_;
  }

  /// `summed`: the tile has steps; else zeros.
  template <shared::StorageType kType, int kCount>
  __device__ __forceinline__ void store(const shared::RowOutput& out, int dim, const float (&d)[kCount], float factor,
                                        bool summed) const {
    if (out.data == nullptr) return;
    if constexpr (kConfig.device_lengths) {
      if (steps_ < 0) return;  // no tile
    }
    const int kv_len = word(shared::kTileKvLen);
    const long long head_at = word(shared::kTileBatch) * out.stride[0] + word(shared::kTileKvHead) * out.stride[1] +
                              word(shared::kTileKvBegin) * out.stride[2];
    store_gradient<kConfig, kType>(out, dim, d, factor, head_at, kv_first() + own_key(), summed ? kv_len : 0,
                                   params_.padded_keys > 0 ? params_.padded_keys : kv_len);
  }

  const Memory& memory_;
  const Params& params_;
  int rank_, steps_;
  bool ragged_keys_;  // of the CTA's half
};

}  // namespace heddle
