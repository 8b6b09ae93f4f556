// A warpgroup's share of the backward to head dimension 128: 64 keys of a tile, tile after tile. Who derives from it
// has the loop over the tile's steps, where the order of products is; here are a step's arithmetic, dS, and what the
// tile's end stores.
#pragma once

#include "backward_sm90/backward_keys.cuh"
#include "backward_sm90/backward_memory.cuh"
#include "backward_sm90/d_q_conversion.cuh"
#include "ptx/wgmma.cuh"

namespace heddle {

template <auto kConfig>
class BackwardRole : public BackwardKeys<kConfig, BackwardMemory<kConfig>, BackwardRole<kConfig>> {
 public:
  using Base = BackwardKeys<kConfig, BackwardMemory<kConfig>, BackwardRole<kConfig>>;
  using typename Base::Memory, typename Base::Numbers, typename Base::Params, typename Base::Weights;
  // A warpgroup may pass by a tile's first steps, and by all.
  static constexpr bool kPassesBy = kConfig.d_q_apart && kConfig.masked;
  // Two registers for what the thread's number decides, instead of some 60 clocks in the way from dS to its store.
  static constexpr bool kKeepsLane = kConfig.d_q_apart && !kConfig.dropped;
  // dK and dV leave by way of shared memory. With weights and dQ apart the compiler has no registers for it.
  static constexpr bool kStaged = kConfig.d_q && !(kConfig.d_q_apart && kConfig.weighted);

  __device__ __forceinline__ BackwardRole(const Memory& memory, const Params& params, int warpgroup)
      : Base(memory, params, warpgroup) {
    if constexpr (kKeepsLane) {
      lane_ = threadIdx.x & 31;
      d_s_lane_ = Base::d_s_of_lane();
      asm volatile("" : "+r"(lane_), "+r"(d_s_lane_));
    }
  }

  // The tile's and the step's words stay in shared memory and are read where they are used: registers are few.
  __device__ __forceinline__ int word(unsigned offset) const { return memory_.tile_word(slot_of(tiles_), offset); }

 protected:  // the pass of reads (backward_reader.cuh) walks tiles likewise
  using Base::kv_first, Base::memory_, Base::params_, Base::ragged_keys_, Base::warpgroup_;

  /// Calls walk() for each tile that has steps, which stores dV and dK; and stores zeros for both in a tile without
  /// steps.
  template <class Walk>
  __device__ __forceinline__ void for_tiles(const Walk& walk) {
    for (;; tiles_.advance(kConfig.tile_buffers())) {
      ptx::barrier_wait(memory_.tile_full(slot_of(tiles_)), parity_of(tiles_));
      const int steps = __shfl_sync(~0U, word(shared::kTileSteps), 0);
      if (steps < 0) break;
      if constexpr (kConfig.consumers_convert()) {
        DqConverter<kConfig>(memory_, params_, slot_of(tiles_), warpgroup_).run();
        release(memory_.converted());
      }
      if constexpr (kConfig.ring) {
        if (word(shared::kTileKvTile) < 0) {  // no keys: its units alone
          if constexpr (kConfig.kv_buffers() == 1) release(memory_.kv_empty());
          if constexpr (!kConfig.draws()) break;
          release(memory_.tile_empty(slot_of(tiles_)));
          continue;
        }
      }
      ragged_keys_ = kv_first() + kConfig.keys() > word(shared::kTileKvLen);
      if (steps > 0) {
        walk();
      } else {
        // The producer has seen that the tile before gave its keys back: a second release would hide the first one.
        if constexpr (kConfig.kv_buffers() == 1) ptx::barrier_wait(memory_.v_full(), slot_of(tiles_));
        store_zeros();
      }
      if constexpr (kConfig.kv_buffers() == 1) release(memory_.kv_empty());
      if constexpr (!kConfig.draws()) break;
      release(memory_.tile_empty(slot_of(tiles_)));
    }
  }
  /// No step is summed: the tile has none, or none of this CTA's attends the warpgroup's keys.
  __device__ __forceinline__ void store_zeros() {
    ptx::forget(d_k_);
    ptx::forget(d_v_);
    bool summed = false;
    if constexpr (kConfig.shares) {
      summed = word(shared::kTileShare) != 0;
      for (float& d : d_k_) d = 0;
      for (float& d : d_v_) d = 0;
    }
    if (this->adds_shares(params_.d_v, 0, d_v_)) {
      this->template store<kConfig.d_v_type>(params_.d_v, kConfig.v_dim, d_v_, 1.0F, summed);
    }
    if (this->adds_shares(params_.d_k, 1, d_k_)) {
      this->template store<kConfig.d_k_type>(params_.d_k, kConfig.qk_dim, d_k_, params_.scale, summed);
    }
  }

  __device__ __forceinline__ void release(ptx::Address empty) const { ptx::barrier_arrive_by_warp(empty, lane()); }

  /// A word that all threads of a warp have loaded: one value, and the compiler knows it.
  __device__ __forceinline__ static int uniform(int word) { return __shfl_sync(~0U, word, 0); }

  /// Flags of the step whose queries come next, with that of its rows.
  __device__ __forceinline__ int step_flags() const {
    const int flags = memory_.step_word(slot_of(q_), shared::kStepFlags);
    if constexpr (kConfig.lse_rest) return flags | memory_.far_flag(slot_of(q_));
    return flags;
  }
  /// Where the low numbers of the thread's rows begin.
  __device__ __forceinline__ ptx::Address low(int slot) const {
    return memory_.low(slot) + 4 * shared::low_of_lane(lane());
  }

  __device__ __forceinline__ void weigh(int flags, bool cut, unsigned& bits, const TransposedDrops& drops,
                                        const TransposedOrigin& at, const Numbers& lse, int slot) {
    if constexpr (kConfig.lse_rest) {
      if (flags & shared::kStepFar) {
        bits = Weights::template weigh<true, true>(s_, p_, bits, drops, params_, at, lse, low(slot));
        return;
      }
    }
    if (cut) {
      bits = Weights::template weigh<true, false>(s_, p_, bits, drops, params_, at, lse, 0);
    } else {
      bits = Weights::template weigh<false, false>(s_, p_, bits, drops, params_, at, lse, 0);
    }
  }
  __device__ __forceinline__ void differentiate(bool cut, unsigned bits, const TransposedDrops& drops,
                                                const TransposedOrigin& at, const Numbers& deltas) {
    if (cut) {
      Weights::template differentiate<true>(y_, s_, d_s_, bits, drops, params_, at, deltas);
    } else {
      Weights::template differentiate<false>(y_, s_, d_s_, bits, drops, params_, at, deltas);
    }
  }

  __device__ __forceinline__ ptx::Address own_rows(ptx::Address panel) const {
    return panel + warpgroup_ * (shared::kWarpgroupRows * 128);
  }

  __device__ __forceinline__ static int before(int slot, int slots) { return (slot == 0 ? slots : slot) - 1; }
  /// Queries and dO of the step before, whose products have ended.
  __device__ __forceinline__ void give_back(int queries) const {
    release(memory_.q_empty(queries));
    release(memory_.d_o_empty(before(slot_of(d_o_), kConfig.d_o_stages)));
  }

  __device__ __forceinline__ int lane() const {
    if constexpr (kKeepsLane) return lane_;
    return static_cast<int>(threadIdx.x & 31);
  }
  __device__ __forceinline__ int lane_offset() const { return 4 * shared::offset_of_lane(lane()); }

  /// dS, in one of two buffers.
  __device__ __forceinline__ void store_d_s() {
    const ptx::Address at = kKeepsLane ? d_s_lane_ : Base::d_s_of_lane();
    Base::store_panel(memory_.d_s(number_ % shared::kDsBuffers, warpgroup_) + at, d_s_);
    release(memory_.d_s_full(number_ % shared::kDsBuffers));
  }

  /// By way of shared memory that nothing else needs.
  __device__ __forceinline__ void store_d_k(ptx::Address stage) {
    if (!this->adds_shares(params_.d_k, 1, d_k_)) return;
    this->template store<kConfig.d_k_type, kStaged>(params_.d_k, kConfig.qk_dim, d_k_, params_.scale, true, stage);
  }
  __device__ __forceinline__ void store_d_v(ptx::Address stage) {
    if (!this->adds_shares(params_.d_v, 0, d_v_)) return;
    this->template store<kConfig.d_v_type, kStaged>(params_.d_v, kConfig.v_dim, d_v_, 1.0F, true, stage);
  }

  int lane_;               // kKeepsLane
  ptx::Address d_s_lane_;  // kKeepsLane: d_s_of_lane()
  int number_ = 0;         // of the step, among those of all tiles
  bool fresh_;             // the step is its tile's first
  ptx::PackedRing tiles_{0}, q_{0}, d_o_{0};
  float s_[32];  // registers: S, then X: 64 keys x 64 queries
  float y_[32];  // dP, 64 keys x 64 queries
  unsigned p_[16], d_s_[16];
  float d_k_[kConfig.columns / 2], d_v_[kConfig.columns / 2];  // 64 keys x columns
};

}  // namespace heddle
