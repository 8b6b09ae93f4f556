// A consumer of the backward: one warpgroup, 64 keys of a tile, through all of its steps, tile after tile. Of each step
// it computes S^T and dP^T of its keys, adds to its dV and dK, and leaves dS in shared memory; dQ = dS K, over the keys
// of all warpgroups, follows one step behind.
//
// A step's products come in three bursts, and what is between them is arithmetic: dQ of the step before; dP and dV; dK
// and the next step's S. Warpgroups meet at dS alone, by a barrier for each panel of 64 keys: no barrier stops all.
#pragma once

#include "fragments/transposed_weights.cuh"
#include "ptx/matrix_store.cuh"
#include "ptx/tma.cuh"
#include "backward_sm90/backward_memory.cuh"
#include "backward_sm90/backward_output.cuh"
#include "backward_sm90/backward_products.cuh"

namespace heddle {

template <auto kConfig>
class BackwardConsumer {
 public:
  // A step waits for the next one's queries before it gives back those of the step before.
  static_assert(kConfig.q_stages >= 3 && kConfig.d_o_stages >= 2);
  using Memory = BackwardMemory<kConfig>;
  using Params = shared::BackwardSm90Params;
  using Weights = TransposedWeights<kConfig, Params>;
  using Numbers = typename Weights::Numbers;
  // Mods of each score look at where it is.
  static constexpr bool kNeedsOrigin =
      kConfig.scores != shared::ScoreForm::plain || kConfig.weighted || kConfig.dropped;

  __device__ __forceinline__ BackwardConsumer(const Memory& memory, const Params& params, int warpgroup)
      : memory_(memory), params_(params), warpgroup_(warpgroup) {}

  __device__ __forceinline__ void run() {
    for (;; tiles_.advance(shared::kTileBuffers)) {
      ptx::barrier_wait(memory_.tile_full(slot_of(tiles_)), parity_of(tiles_));
      const int steps = __shfl_sync(~0U, word(shared::kTileSteps), 0);
      if (steps < 0) break;
      ragged_keys_ = kv_first() + kConfig.keys() > word(shared::kTileKvLen);
      if (steps > 0) {
        walk();
      } else {
        ptx::forget(d_k_);
        ptx::forget(d_v_);
        store_d_v(false);
      }
      release(memory_.kv_empty());
      store_d_k(steps > 0);
      if constexpr (!kConfig.draws()) break;
      release(memory_.tile_empty(slot_of(tiles_)));
    }
  }

 protected:  // the pass of reads (backward_reader.cuh) walks tiles likewise
  // The tile's and the step's words stay in shared memory and are read where they are used: registers are few.
  __device__ __forceinline__ int word(unsigned offset) const { return memory_.tile_word(slot_of(tiles_), offset); }

  __device__ __forceinline__ void release(ptx::Address empty) const {
    __syncwarp();  // all its threads have read
    if ((threadIdx.x & 31) == 0) ptx::barrier_arrive(empty);
  }

  // Products of which both operands stand in shared memory keep it busy, and loads and stores wait. So loads stand
  // before products, or where their results are not needed soon. A read of stored data through the other proxy needs a
  // fence, and the reader fences: a fence behind the store would wait for it.
  __device__ __forceinline__ void walk() {
    ptx::forget(s_);
    ptx::forget(y_);
    ptx::forget(d_k_);
    ptx::forget(d_v_);
    ptx::barrier_wait(memory_.k_full(), slot_of(tiles_));  // the parity: see the producer
    ptx::barrier_wait(memory_.q_full(slot_of(q_)), parity_of(q_));
    int flags = step_flags();
    Numbers numbers;
    numbers.set(memory_.lse(slot_of(q_)) + lane_offset());
    issue_scores<kConfig>(s_, own_rows(memory_.keys()), memory_.queries(slot_of(q_)));
    ptx::barrier_wait(memory_.v_full(), slot_of(tiles_));
    for (fresh_ = true;; fresh_ = false) {
      // In flight: S of this step, dK of the one before.
      const int slot = slot_of(q_);
      q_.advance(kConfig.q_stages);
      asm volatile("" : "+r"(flags));      // not before it is needed
      flags = __shfl_sync(~0U, flags, 0);  // one value for the warp, and the compiler knows it
      const bool last = (flags & shared::kStepLast) != 0;
      await_step(last);
      ptx::wgmma_wait<0>();
      ptx::touch(s_);
      ptx::touch(d_k_);
      ptx::touch(d_v_);
      if (!fresh_) give_back(before(slot, kConfig.q_stages));
      TransposedOrigin at{};
      if constexpr (kNeedsOrigin) at = origin(slot);
      TransposedDrops drops{};
      // Not beside dQ, whose registers they would need: here, and not where the bits are used.
      if constexpr (kConfig.dropped) {
        drops = draw_transposed(params_.mod, at);
        asm volatile("" : "+r"(drops.bits));
      }
      if constexpr (kConfig.d_q) {
        begin_part();
        if constexpr (kConfig.frugal) end_part();
      }
      unsigned bits = attending(flags, slot);
      const bool cut = bits_matter(flags);
      weigh(flags, cut, bits, drops, at, numbers, slot);
      if constexpr (kConfig.d_q && !kConfig.frugal) end_part();
      issue_scores<kConfig>(y_, own_rows(memory_.values()), memory_.d_o(slot_of(d_o_)));
      issue_gradient<kConfig>(d_v_, p_, memory_.d_o(slot_of(d_o_)), !fresh_);
      numbers.set(memory_.delta(slot) + lane_offset());
      d_o_.advance(kConfig.d_o_stages);
      ptx::wgmma_wait<kConfig.frugal ? 0 : 1>();  // then P's registers are free
      ptx::touch(y_);
      differentiate(cut, bits, drops, at, numbers);
      if constexpr (kConfig.d_q) store_d_s();
      // These are the next step's; after the last step they are whatever stands there, and are forgotten.
      flags = step_flags();
      numbers.set(memory_.lse(slot_of(q_)) + lane_offset());
      issue_gradient<kConfig>(d_k_, d_s_, memory_.queries(slot), !fresh_);
      ++number_;
      if (last) break;
      issue_scores<kConfig>(s_, own_rows(memory_.keys()), memory_.queries(slot_of(q_)));
    }
    finish();
  }

  /// The last step's dK has been asked for. dV is stored beside it.
  __device__ __forceinline__ void finish() {
    fresh_ = false;
    ptx::wgmma_wait<1>();
    ptx::touch(d_v_);
    store_d_v(true);
    if constexpr (kConfig.d_q) await_part();
    ptx::wgmma_wait<0>();
    ptx::touch(d_k_);
    give_back(before(slot_of(q_), kConfig.q_stages));
    if constexpr (kConfig.d_q) {
      begin_part();
      end_part();
    }
  }

  /// Flags of the step whose queries come next, with that of its rows.
  __device__ __forceinline__ int step_flags() const {
    const int flags = memory_.step_word(slot_of(q_), shared::kStepFlags);
    if constexpr (kConfig.lse_rest) return flags | memory_.far_flag(slot_of(q_));
    return flags;
  }
  /// Where the low numbers of the thread's rows begin.
  __device__ __forceinline__ ptx::Address low(int slot) const {
    return memory_.low(slot) + 4 * shared::low_of_lane(threadIdx.x & 31);
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

  /// Waits for dO, for the next step's queries, and for what the part of dQ needs. A part's buffer of dS is free when
  /// it is written: none stores dS before its part of two steps ago has ended, and all have waited for the dS between.
  __device__ __forceinline__ void await_step(bool last) const {
    // Behind the last step's queries no others come.
    const ptx::Address queries = last ? memory_.d_o_full(slot_of(d_o_)) : memory_.q_full(slot_of(q_));
    const unsigned parity = last ? parity_of(d_o_) : parity_of(q_);
    if constexpr (kConfig.d_q) {
      if (!fresh_) {
        ptx::barrier_wait(memory_.d_s_full((number_ - 1) % shared::kDsBuffers), d_s_parity(),
                          memory_.d_q_empty(warpgroup_), number_ & 1, memory_.d_o_full(slot_of(d_o_)), parity_of(d_o_),
                          queries, parity);
        ptx::fence_for_tma();
        return;
      }
    }
    ptx::barrier_wait(memory_.d_o_full(slot_of(d_o_)), parity_of(d_o_));
    ptx::barrier_wait(queries, parity);
  }
  __device__ __forceinline__ unsigned d_s_parity() const { return (number_ - 1) / shared::kDsBuffers & 1; }

  __device__ __forceinline__ static int before(int slot, int slots) { return (slot == 0 ? slots : slot) - 1; }
  /// Queries and dO of the step before, whose products have ended.
  __device__ __forceinline__ void give_back(int queries) const {
    release(memory_.q_empty(queries));
    release(memory_.d_o_empty(before(slot_of(d_o_), kConfig.d_o_stages)));
  }

  __device__ __forceinline__ static int lane_offset() { return 4 * shared::offset_of_lane(threadIdx.x & 31); }
  /// The thread's first key, in the tile.
  __device__ __forceinline__ int own_key() const {
    return 64 * warpgroup_ + 16 * static_cast<int>((threadIdx.x >> 5) & 3) + static_cast<int>((threadIdx.x & 31) >> 2);
  }
  __device__ __forceinline__ int kv_first() const { return word(shared::kTileKvTile) * kConfig.keys(); }
  __device__ __forceinline__ TransposedOrigin origin(int slot) const {
    return {word(shared::kTileBatch), memory_.step_word(slot, shared::kStepHead),
            memory_.step_word(slot, shared::kStepQFirst) + 2 * static_cast<int>(threadIdx.x & 3) +
                word(shared::kTileQStart),
            kv_first() + own_key()};
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

  // dS, in buffers of its own: panels of 64 keys, rows of queries.

  __device__ __forceinline__ void store_d_s() {
    const unsigned lane = threadIdx.x & 31, warp = (threadIdx.x >> 5) & 3, row = lane & 7, matrix = lane >> 3;
    const unsigned chunk = 2 * warp + (matrix & 1);
    const ptx::Address to =
        memory_.d_s(number_ % shared::kDsBuffers, warpgroup_) + (8 * (matrix >> 1) + row) * 128 + (chunk ^ row) * 16;
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const unsigned words[4] = {d_s_[4 * c], d_s_[4 * c + 1], d_s_[4 * c + 2], d_s_[4 * c + 3]};
      ptx::store_transposed(to + c * (16 * 128), words);
    }
    release(memory_.d_s_full(number_ % shared::kDsBuffers));
  }

  // dQ of the step before, each warpgroup a part. A tile's first step computes it too, from whatever stands in memory,
  // and drops it: if some steps lacked the product, the compiler would serialise all products.

  __device__ __forceinline__ void await_part() const {
    ptx::barrier_wait(memory_.d_s_full((number_ - 1) % shared::kDsBuffers), d_s_parity());
    ptx::barrier_wait(memory_.d_q_empty(warpgroup_), number_ & 1);
    ptx::fence_for_tma();
  }
  /// dQ, in flight: a panel of K's columns, or half of one.
  __device__ __forceinline__ void begin_part() {
    const ptx::Address columns = warpgroup_ * (kConfig.d_q_columns() == 64 ? kConfig.keys() * 128 : 64);
    issue_queries<kConfig>(d_q(), memory_.d_s(max(number_ - 1, 0) % shared::kDsBuffers, 0), memory_.keys() + columns);
  }
  /// It has come: to shared memory, and on.
  __device__ __forceinline__ void end_part() {
    ptx::wgmma_wait<0>();
    ptx::touch(d_q());
    if (fresh_) return;
    const ptx::Address to = memory_.d_q(warpgroup_) + 16 * (threadIdx.x & 127);
#pragma unroll
    for (int j = 0; j < kConfig.d_q_columns() / 8; ++j) {
      ptx::store_floats(to + j * (128 * 16), d_q()[4 * j], d_q()[4 * j + 1], d_q()[4 * j + 2], d_q()[4 * j + 3]);
    }
    release(memory_.d_q_full(warpgroup_));
  }
  __device__ __forceinline__ auto& d_q() {
    if constexpr (kConfig.d_q_columns() == 64) {
      return y_;
    } else {
      return half_;
    }
  }
  // `summed`: the tile has steps.
  __device__ __forceinline__ void store_d_k(bool summed) const {
    if (params_.d_k.data == nullptr) return;
    store_gradient<kConfig, kConfig.d_k_type>(params_.d_k, kConfig.qk_dim, d_k_, params_.scale, head_at(params_.d_k),
                                              kv_first() + own_key(), summed ? word(shared::kTileKvLen) : 0, stored());
  }
  __device__ __forceinline__ void store_d_v(bool summed) const {
    if (params_.d_v.data == nullptr) return;
    store_gradient<kConfig, kConfig.d_v_type>(params_.d_v, kConfig.v_dim, d_v_, 1.0F, head_at(params_.d_v),
                                              kv_first() + own_key(), summed ? word(shared::kTileKvLen) : 0, stored());
  }
  __device__ __forceinline__ int stored() const {
    return params_.padded_keys > 0 ? params_.padded_keys : word(shared::kTileKvLen);
  }
  __device__ __forceinline__ long long head_at(const shared::RowOutput& out) const {
    return word(shared::kTileBatch) * out.stride[0] + word(shared::kTileKvHead) * out.stride[1] +
           word(shared::kTileKvBegin) * out.stride[2];
  }

  const Memory& memory_;
  const Params& params_;
  int warpgroup_;
  int number_ = 0;    // of the step, among those of all tiles
  bool ragged_keys_;  // of the tile
  bool fresh_;        // the step is its tile's first
  ptx::PackedRing tiles_{0}, q_{0}, d_o_{0};
  float s_[32];  // registers: S, then X: 64 keys x 64 queries
  float y_[32];  // dQ of the step before, 64 queries x 64 columns; then dP, 64 keys x 64 queries
  float half_[kConfig.d_q_columns() == 64 ? 1 : 16];  // dQ, where a part has 32 columns
  unsigned p_[16], d_s_[16];
  float d_k_[kConfig.columns / 2], d_v_[kConfig.columns / 2];  // 64 keys x columns
};

}  // namespace heddle
