// A consumer of the backward: one warpgroup, 64 keys of a tile, through all of its steps, tile after tile. Of each step
// it computes S^T and dP^T of its keys, adds to its dV and dK, and leaves dS in shared memory; dQ = dS K, over the keys
// of all warpgroups, follows one step behind.
//
// A step's products come in three bursts, with arithmetic between them: dQ of the step before; dP and dV; dK and the
// next step's S. Warpgroups meet at dS alone, by a barrier for each panel of 64 keys: no barrier stops all.
#pragma once

#include "backward_sm90/backward_products.cuh"
#include "backward_sm90/backward_role.cuh"

namespace heddle {

template <auto kConfig>
class BackwardConsumer : public BackwardRole<kConfig> {
 public:
  // A step waits for the next one's queries before it gives back those of the step before.
  static_assert(kConfig.q_stages >= 3 && kConfig.d_o_stages >= 2);
  using Base = BackwardRole<kConfig>;
  using Numbers = typename Base::Numbers;
  using Base::Base;
  // With a mapped score they would spill.
  static constexpr bool kEarlyFlags = kConfig.scores != ScoreForm::mapped;

  __device__ __forceinline__ void run() {
    this->for_tiles([this] { walk(); });
  }

 private:
  using Base::attending, Base::before, Base::bits_matter, Base::differentiate, Base::give_back, Base::kNeedsOrigin,
      Base::lane_offset, Base::origin, Base::own_rows, Base::release, Base::step_flags, Base::store_d_k,
      Base::store_d_s, Base::store_d_v, Base::uniform, Base::weigh;
  using Base::d_k_, Base::d_o_, Base::d_s_, Base::d_v_, Base::fresh_, Base::memory_, Base::number_, Base::p_,
      Base::params_, Base::q_, Base::s_, Base::tiles_, Base::warpgroup_, Base::y_;

  // Products of which both operands stand in shared memory keep it busy, and loads and stores wait. So loads stand
  // before products, or where their results are not needed soon: delta before dP is asked for, a step's flags while the
  // step before weighs. A read of stored data through the other proxy needs a fence, and the reader fences: a fence
  // behind the store would wait for it.
  __device__ __forceinline__ void walk() {
    ptx::forget(s_);
    ptx::forget(y_);
    ptx::forget(d_k_);
    ptx::forget(d_v_);
    ptx::barrier_wait(memory_.k_full(), slot_of(tiles_));  // the parity: see the producer
    ptx::barrier_wait(memory_.q_full(slot_of(q_)), parity_of(q_));
    int flags = uniform(step_flags());
    Numbers numbers;
    numbers.set(memory_.lse(slot_of(q_)) + lane_offset());
    issue_scores<kConfig>(s_, own_rows(memory_.keys()), memory_.queries(slot_of(q_)));
    ptx::barrier_wait(memory_.v_full(), slot_of(tiles_));
    for (fresh_ = true;; fresh_ = false) {
      // In flight: S of this step, dK of the one before.
      const int slot = slot_of(q_);
      q_.advance(kConfig.q_stages);
      if constexpr (!kEarlyFlags) {
        asm volatile("" : "+r"(flags));  // not before it is needed
        flags = uniform(flags);
      }
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
      // The bits are drawn here and not where they are used: beside dQ's product there are no registers for them.
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
      int next_flags = 0;  // whose queries have come; after the last step whatever stands there
      if constexpr (kEarlyFlags) {
        next_flags = step_flags();
        asm volatile("" : "+r"(next_flags));
      }
      weigh(flags, cut, bits, drops, at, numbers, slot);
      if constexpr (kEarlyFlags) {
        asm volatile("" : "+r"(next_flags));  // no wait for them before the weights
        flags = uniform(next_flags);
      }
      if constexpr (kConfig.d_q && !kConfig.frugal) end_part();
      numbers.set(memory_.delta(slot) + lane_offset());
      issue_scores<kConfig>(y_, own_rows(memory_.values()), memory_.d_o(slot_of(d_o_)));
      issue_gradient<kConfig>(d_v_, p_, memory_.d_o(slot_of(d_o_)), !fresh_);
      d_o_.advance(kConfig.d_o_stages);
      ptx::wgmma_wait<kConfig.frugal ? 0 : 1>();  // then P's registers are free
      ptx::touch(y_);
      differentiate(cut, bits, drops, at, numbers);
      if constexpr (kConfig.d_q) store_d_s();
      // These are the next step's; after the last step they are whatever stands there, and are forgotten.
      if constexpr (!kEarlyFlags) flags = step_flags();
      numbers.set(memory_.lse(slot_of(q_)) + lane_offset());
      issue_gradient<kConfig>(d_k_, d_s_, memory_.queries(slot), !fresh_);
      ++number_;
      if (last) break;
      issue_scores<kConfig>(s_, own_rows(memory_.keys()), memory_.queries(slot_of(q_)));
    }
    finish();
  }

  /// The last step's dK has been asked for. dV is stored beside it, dK beside the last part of dQ, both by way of the
  /// memory where that part goes then.
  __device__ __forceinline__ void finish() {
    fresh_ = false;
    ptx::Address stage = 0;
    if constexpr (kConfig.d_q) {
      stage = memory_.d_q(warpgroup_);
      ptx::barrier_wait(memory_.d_q_empty(warpgroup_), number_ & 1);
    }
    ptx::wgmma_wait<1>();
    ptx::touch(d_v_);
    store_d_v(stage);
    if constexpr (kConfig.d_q) await_part();
    ptx::wgmma_wait<0>();
    ptx::touch(d_k_);
    give_back(before(slot_of(q_), kConfig.q_stages));
    if constexpr (kConfig.d_q) begin_part();
    store_d_k(stage);
    if constexpr (kConfig.d_q) {
      ptx::named_barrier(1 + warpgroup_, 128);  // a warp's share of the part goes where others had their dK
      end_part();
    }
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

  float half_[kConfig.d_q_columns() == 64 ? 1 : 16];  // registers: dQ, where a part has 32 columns, else in y_
};

}  // namespace heddle
