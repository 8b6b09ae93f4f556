// A consumer of the backward where a warpgroup of its own computes dQ (backward_sm90/backward_queries.cuh): 64 keys of
// a tile through all of its steps, tile after tile. Its rows of K and V stay in registers (held), so S^T and dP^T read
// half as much of shared memory, which such steps keep busy; else they are read there.
//
// dP is asked for before the exponentials and dV before dS, so both are computed beside arithmetic; the next step's S
// follows dK. A step has two waits for products, and the warpgroups of a CTA meet nowhere: dS has two buffers.
#pragma once

#include "backward_sm90/backward_products.cuh"
#include "backward_sm90/backward_role.cuh"
#include "ptx/matrix_load.cuh"

namespace heddle {

/// S^T or dP^T, of one panel of columns, with the keys in registers: sixteen columns in four of them.
__device__ __forceinline__ void issue_held_scores(float (&s)[32], unsigned (&keys)[16], ptx::Address queries) {
  const unsigned b = queries >> 4;
  ptx::wgmma_fence();
#pragma unroll
  for (int i = 0; i < 4; ++i) held_score_product(s, &keys[4 * i], ptx::descriptor(b + i * ptx::kNextColumns), i > 0);
  ptx::wgmma_commit();
}

template <auto kConfig>
class BackwardHolder : public BackwardRole<kConfig> {
 public:
  static_assert(kConfig.columns == shared::kPanelColumns && kConfig.d_q_apart && kConfig.d_q);
  // A step waits for the next one's queries and dO before those of the step before are given back.
  static_assert(kConfig.q_stages >= 3 && kConfig.d_o_stages >= 2);
  using Base = BackwardRole<kConfig>;
  using Numbers = typename Base::Numbers;
  using Base::Base;
  // Mods need the registers.
  static constexpr bool kLateLse = kConfig.scores == ScoreForm::plain && !kConfig.weighted && !kConfig.dropped;

  __device__ __forceinline__ void run() {
    this->for_tiles([this] { walk(); });
  }

 private:
  using Base::attending, Base::before, Base::bits_matter, Base::differentiate, Base::give_back, Base::kNeedsOrigin,
      Base::lane_offset, Base::origin, Base::own_rows, Base::step_flags, Base::store_d_k, Base::store_d_s,
      Base::store_d_v, Base::uniform, Base::weigh;
  using Base::d_k_, Base::d_o_, Base::d_s_, Base::d_v_, Base::fresh_, Base::memory_, Base::number_, Base::p_,
      Base::params_, Base::q_, Base::s_, Base::tiles_, Base::warpgroup_, Base::y_;

  __device__ __forceinline__ void walk() {
    hold();
    if constexpr (Base::kPassesBy) {
      if (!pass_by()) {
        this->store_zeros();
        return;
      }
    }
    ptx::forget(s_);
    ptx::forget(y_);
    ptx::forget(d_k_);
    ptx::forget(d_v_);
    ptx::barrier_wait(memory_.q_full(slot_of(q_)), parity_of(q_));
    Numbers numbers;
    numbers.set(memory_.lse(slot_of(q_)) + lane_offset());
    ask_scores();
    int flags = uniform(step_flags());
    ptx::barrier_wait(memory_.d_o_full(slot_of(d_o_)), parity_of(d_o_));
    for (fresh_ = true;; fresh_ = false) {
      // In flight: dV and dK of the step before, S of this one. Groups may be in flight over a loop's end only if its
      // first wait is for all of them (C7514).
      const int slot = slot_of(q_);
      const unsigned parity = parity_of(q_);
      q_.advance(kConfig.q_stages);
      const bool last = (flags & shared::kStepLast) != 0;
      TransposedOrigin at{};
      if constexpr (kNeedsOrigin) at = origin(slot);
      TransposedDrops drops{};
      if constexpr (kConfig.dropped) {
        drops = draw_transposed(params_.mod, at);
        asm volatile("" : "+r"(drops.bits));
      }
      ptx::wgmma_wait<0>();
      ptx::touch(s_);
      ptx::touch(d_k_);
      ptx::touch(d_v_);
      ask_gradients();
      if (!fresh_) give_back(before(slot, kConfig.q_stages));
      // Behind the last step's queries no others come. The wait ends the compiler's block as well, so that dP is asked
      // for before the exponentials.
      ptx::barrier_wait(memory_.q_full(last ? slot : slot_of(q_)), last ? parity : parity_of(q_));
      unsigned bits = attending(flags, slot);
      const bool cut = bits_matter(flags);
      int next_flags = step_flags();  // of the next step, whose queries have come; after the last whatever stands there
      asm volatile("" : "+r"(next_flags));
      weigh(flags, cut, bits, drops, at, numbers, slot);
      asm volatile("" : "+r"(next_flags));  // no wait for them before the weights
      flags = uniform(next_flags);
      numbers.set(memory_.delta(slot) + lane_offset());  // before products, behind which it would wait
      issue_gradient<kConfig>(d_v_, p_, memory_.d_o(slot_of(d_o_)), !fresh_);
      d_o_.advance(kConfig.d_o_stages);
      await_d_s();
      ptx::wgmma_wait<kConfig.frugal ? 0 : 1>();  // then P's registers are free
      ptx::touch(y_);
      differentiate(cut, bits, drops, at, numbers);
      store_d_s();
      // These are the next step's; after the last step they are whatever stands there, and are forgotten.
      if constexpr (!kLateLse) numbers.set(memory_.lse(slot_of(q_)) + lane_offset());
      issue_gradient<kConfig>(d_k_, d_s_, memory_.queries(slot), !fresh_);
      ++number_;
      if (last) break;
      ptx::barrier_wait(memory_.d_o_full(slot_of(d_o_)), parity_of(d_o_));
      if constexpr (kLateLse) numbers.set(memory_.lse(slot_of(q_)) + lane_offset());
      ask_scores();
    }
    finish();
  }

  /// Passes by the tile's first steps that do not attend the warpgroup's keys, such as those of causal masks before the
  /// diagonal: their dS is zeros, and no product is asked for. False if there are no others.
  __device__ __forceinline__ bool pass_by() {
    for (;;) {
      ptx::barrier_wait(memory_.q_full(slot_of(q_)), parity_of(q_));
      const int flags = __shfl_sync(~0U, step_flags(), 0);
      if ((flags & (shared::kStepAttends << warpgroup_)) != 0) return true;
      // Else dO might be given back before the other warpgroup has given back what stood there.
      ptx::barrier_wait(memory_.d_o_full(slot_of(d_o_)), parity_of(d_o_));
      await_d_s();
#pragma unroll
      for (int i = 0; i < 16; ++i) d_s_[i] = 0;
      store_d_s();
      ++number_;
      q_.advance(kConfig.q_stages);
      d_o_.advance(kConfig.d_o_stages);
      give_back(before(slot_of(q_), kConfig.q_stages));
      if ((flags & shared::kStepLast) != 0) return false;
    }
  }
  /// dS's buffer is free.
  __device__ __forceinline__ void await_d_s() const {
    ptx::barrier_wait(memory_.d_s_empty(number_ % shared::kDsBuffers), (number_ / shared::kDsBuffers & 1) ^ 1);
  }

  /// The last step's dV and dK have been asked for. dV is stored beside dK, both by way of the warpgroup's rows of V:
  /// no other warpgroup reads them, and this one has finished with them. TMA may write there next.
  __device__ __forceinline__ void finish() {
    const ptx::Address stage = own_rows(memory_.values(slot_of(tiles_)));
    // Sums of other shares come to dV's registers, for which no product may be in flight (C7515).
    ptx::wgmma_wait<kConfig.shares ? 0 : 1>();
    ptx::touch(d_v_);
    store_d_v(stage);
    ptx::wgmma_wait<0>();
    ptx::touch(d_k_);
    give_back(before(slot_of(q_), kConfig.q_stages));
    store_d_k(stage);
    ptx::fence_for_tma();
  }

  /// K and V of the tile have come, and those of the warpgroup's keys stand in its registers.
  __device__ __forceinline__ void hold() {
    const int buffer = slot_of(tiles_);
    ptx::barrier_wait(memory_.k_full(buffer), parity_of(tiles_));
    ptx::barrier_wait(memory_.v_full(buffer), parity_of(tiles_));
    if constexpr (kConfig.held) {
      load_operand(own_rows(memory_.keys(buffer)), keys_);
      load_operand(own_rows(memory_.values(buffer)), values_);
    }
  }
  /// 64 rows x 64 columns, as a product takes its left operand: sixteen columns in four registers.
  __device__ __forceinline__ static void load_operand(ptx::Address rows, unsigned (&words)[16]) {
    const unsigned lane = threadIdx.x & 31, row = 16 * ((threadIdx.x >> 5) & 3) + (lane & 15);
#pragma unroll
    for (unsigned i = 0; i < 4; ++i) {
      ptx::load_matrices(rows + row * 128 + ((2 * i + (lane >> 4)) ^ (row & 7)) * 16, &words[4 * i]);
    }
  }
  /// S of the step whose queries come next.
  __device__ __forceinline__ void ask_scores() {
    if constexpr (kConfig.held) {
      issue_held_scores(s_, keys_, memory_.queries(slot_of(q_)));
    } else {
      issue_scores<kConfig>(s_, own_rows(memory_.keys(slot_of(tiles_))), memory_.queries(slot_of(q_)));
    }
  }
  /// dP.
  __device__ __forceinline__ void ask_gradients() {
    if constexpr (kConfig.held) {
      issue_held_scores(y_, values_, memory_.d_o(slot_of(d_o_)));
    } else {
      issue_scores<kConfig>(y_, own_rows(memory_.values(slot_of(tiles_))), memory_.d_o(slot_of(d_o_)));
    }
  }

  unsigned keys_[kConfig.held ? 16 : 1], values_[kConfig.held ? 16 : 1];  // registers: 64 keys x columns
};

}  // namespace heddle
