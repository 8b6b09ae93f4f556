// 64 keys of a tile, which one warpgroup owns, in any form of the backward: where its elements lie, which of them
// attend, and where their gradients are stored. The backward's S^T and dP^T are 64 keys x 64 queries a step.
#pragma once

#include "backward_sm90/backward_output.cuh"
#include "backward_sm90/backward_shares.cuh"
#include "fragments/granule_positions.cuh"
#include "fragments/transposed_weights.cuh"
#include "ptx/matrix_store.cuh"
#include "ptx/tma.cuh"

namespace heddle {

/// Role: the class that derives from it. Its word() reads the current tile's record.
template <auto kConfig, class KernelMemory, class Role>
class BackwardKeys {
 public:
  using Memory = KernelMemory;
  using Params = shared::BackwardSm90Params;
  using Weights = TransposedWeights<kConfig, Params>;
  using Numbers = typename Weights::Numbers;
  // Mods of each score look at where it is.
  static constexpr bool kNeedsOrigin =
      kConfig.scores != shared::ScoreForm::plain || kConfig.weighted || kConfig.dropped;

  __device__ __forceinline__ BackwardKeys(const Memory& memory, const Params& params, int warpgroup)
      : memory_(memory), params_(params), warpgroup_(warpgroup) {}

 protected:
  /// The thread's first key, in the tile.
  __device__ __forceinline__ int own_key() const {
    return 64 * warpgroup_ + 16 * static_cast<int>((threadIdx.x >> 5) & 3) + static_cast<int>((threadIdx.x & 31) >> 2);
  }
  __device__ __forceinline__ int kv_first() const { return word(shared::kTileKvTile) * kConfig.keys(); }
  __device__ __forceinline__ TransposedOrigin origin(int slot) const {
    if constexpr (kConfig.placed_queries || kConfig.placed_keys) return placed_origin(slot);
    return {word(shared::kTileBatch), memory_.step_word(slot, shared::kStepHead),
            memory_.step_word(slot, shared::kStepQFirst) + 2 * static_cast<int>(threadIdx.x & 3) +
                word(shared::kTileQStart),
            kv_first() + own_key()};
  }

  /// A step's queries lie in one granule, and so do a warpgroup's keys.
  __device__ __forceinline__ TransposedOrigin placed_origin(int slot) const {
    const int batch = word(shared::kTileBatch), head = memory_.step_word(slot, shared::kStepHead);
    const int query = memory_.step_word(slot, shared::kStepQFirst), key = kv_first() + 64 * warpgroup_;
    const int q_first =
        kConfig.placed_queries ? position_of_query(params_.mod, batch, head, query) : query + word(shared::kTileQStart);
    const int key_first = kConfig.placed_keys ? position_of_key(params_.mod, batch, head, key) : key;
    return {batch, head, q_first + 2 * static_cast<int>(threadIdx.x & 3), key_first + own_key() - 64 * warpgroup_};
  }

  /// Some elements of the step do not attend, or may not.
  __device__ __forceinline__ bool bits_matter(int flags) const {
    const int decided = shared::kStepRagged | (kConfig.masked ? shared::kStepPartial << warpgroup_ : 0) |
                        (kConfig.lse_rest ? shared::kStepFar : 0);
    return (flags & decided) != 0 || !(flags & (shared::kStepAttends << warpgroup_)) || ragged_keys_;
  }
  __device__ __forceinline__ unsigned attending(int flags, int slot) const {
    if (!bits_matter(flags)) return ~0U;
    if (!(flags & (shared::kStepAttends << warpgroup_))) return 0;
    return attending_bits<kConfig>(
        params_.mod, origin(slot),
        word(shared::kTileQLen) - memory_.step_word(slot, shared::kStepQFirst) - 2 * static_cast<int>(threadIdx.x & 3),
        word(shared::kTileKvLen) - kv_first() - own_key(), (flags & (shared::kStepPartial << warpgroup_)) != 0);
  }

  /// Where the lane's column of the first matrices goes in a panel of dS: 64 keys, rows of queries.
  __device__ __forceinline__ static ptx::Address d_s_of_lane() {
    const unsigned lane = threadIdx.x & 31, warp = (threadIdx.x >> 5) & 3, row = lane & 7, matrix = lane >> 3;
    const unsigned chunk = 2 * warp + (matrix & 1);
    return (8 * (matrix >> 1) + row) * 128 + (chunk ^ row) * 16;
  }
  /// Stores dS. `to`: d_s_of_lane() in the panel.
  __device__ __forceinline__ static void store_panel(ptx::Address to, const unsigned (&d_s)[16]) {
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const unsigned words[4] = {d_s[4 * c], d_s[4 * c + 1], d_s[4 * c + 2], d_s[4 * c + 3]};
      ptx::store_transposed(to + c * (16 * 128), words);
    }
  }

  /// Stores dK or dV of the thread's keys. `summed`: the tile has steps; else zeros. `stage`: shared memory of the
  /// warpgroup for 64 keys x all columns, by way of which they may go.
  template <shared::StorageType kType, bool kStaged = false, int kCount>
  __device__ __forceinline__ void store(const shared::RowOutput& out, int dim, const float (&d)[kCount], float factor,
                                        bool summed, ptx::Address stage = 0) const {
    if (out.data == nullptr) return;
    const int kv_len = word(shared::kTileKvLen);
    const long long head_at = word(shared::kTileBatch) * out.stride[0] + word(shared::kTileKvHead) * out.stride[1] +
                              word(shared::kTileKvBegin) * out.stride[2];
    const int live = summed ? kv_len : 0, stored = params_.padded_keys > 0 ? params_.padded_keys : kv_len;
    if constexpr (kStaged && kConfig.vectorised_gradients && kType == shared::StorageType::same) {
      const int warp = static_cast<int>((threadIdx.x >> 5) & 3);
      store_staged<kConfig>(stage + warp * (64 * kCount), out, dim, d, factor, head_at,
                            kv_first() + 64 * warpgroup_ + 16 * warp, live, stored);
    } else {
      store_gradient<kConfig, kType>(out, dim, d, factor, head_at, kv_first() + own_key(), live, stored);
    }
  }

  /// Whether the warp stores its rows of a gradient (`tensor`: 0 of dV, 1 of dK). Of a tile that CTAs share, the last
  /// one does, with the sums of all.
  template <int kCount>
  __device__ __forceinline__ bool adds_shares(const shared::RowOutput& out, int tensor, float (&d)[kCount]) const {
    if constexpr (!kConfig.shares) return true;
    const int share = __shfl_sync(~0U, word(shared::kTileShare), 0);
    if (share == 0 || out.data == nullptr) return true;
    return add_shares<kConfig>(params_.shares, share, warpgroup_, tensor, d);
  }

  const Memory& memory_;
  const Params& params_;
  int warpgroup_;     // among those that own keys of the tile; each CTA of a pair has one
  bool ragged_keys_;  // the sequence ends among the CTA's keys

 private:
  __device__ __forceinline__ int word(unsigned offset) const { return static_cast<const Role*>(this)->word(offset); }
};

}  // namespace heddle
