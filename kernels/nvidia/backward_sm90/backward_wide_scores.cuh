// The warpgroup of scores: S^T of the CTA's 64 keys, the weights P, and dV, which stays in its registers. What dS needs
// of the scores goes through shared memory, thread by thread, to the warpgroup of gradients.
#pragma once

#include "backward_sm90/backward_wide_role.cuh"

namespace heddle {

template <auto kConfig>
class WideScores : WideRole<kConfig> {
  using Base = WideRole<kConfig>;
  using Base::memory_;
  using Base::params_;
  using Base::steps_;
  using typename Base::Numbers;
  using typename Base::Weights;

 public:
  using Base::Base;

  __device__ __forceinline__ void run() {
    ptx::forget(d_v_);
    if (steps_ > 0) walk();
    // (give_d_o_back() went on to the next slot.)
    const int last = kConfig.d_o_halves ? 0 : steps_ > 0 ? (steps_ - 1) % kConfig.d_o_stages : 0;
    this->template leave<kConfig.d_v_type>(params_.d_v, 0, kConfig.v_dim, d_v_, 1.0F, memory_.d_o(last));
  }

 private:
  __device__ __forceinline__ void walk() {
    ptx::forget(s_);
    ptx::barrier_wait(memory_.k_full(), 0);
    ptx::barrier_wait(memory_.q_full(0), 0);
    issue_wide_scores<kConfig.qk_dim>(s_, memory_.keys(), memory_.queries(0));
    for (int number = 0;; ++number) {
      // In flight: S of this step, dV of the one before.
      const int slot = slot_of(q_);
      const int flags = this->flags_of(slot);
      Numbers lse;  // loaded beside products, where they have registers
      lse.set(memory_.lse(slot) + this->lane_offset());
      ptx::wgmma_wait<0>();
      ptx::touch(s_);
      ptx::touch(d_v_);
      if (number > 0) give_d_o_back();
      weigh(flags, slot, number, lse);
      q_.advance(kConfig.q_stages);
      if (number + 1 == steps_) break;
      // The next S before dV: dO comes later than queries, where it has fewer buffers.
      ptx::barrier_wait(memory_.q_full(slot_of(q_)), parity_of(q_));
      if constexpr (kConfig.scores == ScoreForm::mapped) ptx::forget(s_);  // a mod that branches would leave them live
      issue_wide_scores<kConfig.qk_dim>(s_, memory_.keys(), memory_.queries(slot_of(q_)));
      add_to_d_v(number);
    }
    add_to_d_v(steps_ - 1);
    ptx::wgmma_wait<0>();
    ptx::touch(d_v_);
    // dV leaves by way of the last dO, once the gradients' warpgroup has read it, too. Halves: by way of any two.
    ptx::PackedRing last = d_o_;
    give_d_o_back();
    for (int slots = kConfig.d_o_slots(); slots > 0; --slots, last.advance(kConfig.d_o_stages)) {
      ptx::barrier_wait(memory_.d_o_empty(slot_of(last)), parity_of(last));
    }
  }

  /// dO of a step has been read here.
  __device__ __forceinline__ void give_d_o_back() {
#pragma unroll
    for (int slots = kConfig.d_o_slots(); slots > 0; --slots) {
      this->give_back(memory_.d_o_empty(slot_of(d_o_)));
      d_o_.advance(kConfig.d_o_stages);
    }
  }

  __device__ __forceinline__ void add_to_d_v(int number) {
    ptx::PackedRing d_o = d_o_;
    ptx::barrier_wait(memory_.d_o_full(slot_of(d_o)), parity_of(d_o));
    if constexpr (kConfig.d_o_halves) {
      issue_two_panels<0>(d_v_, p_, memory_.d_o(slot_of(d_o)), number > 0);
      d_o.advance(kConfig.d_o_stages);
      ptx::barrier_wait(memory_.d_o_full(slot_of(d_o)), parity_of(d_o));
      issue_two_panels<2>(d_v_, p_, memory_.d_o(slot_of(d_o)), number > 0);
    } else {
      issue_wide_gradient(d_v_, p_, memory_.d_o(slot_of(d_o)), number > 0);
    }
  }

  /// Scores become weights, and factors for the other warpgroup.
  __device__ __forceinline__ void weigh(int flags, int slot, int number, const Numbers& lse) {
    TransposedOrigin at{};
    if constexpr (Base::kNeedsOrigin) at = this->origin(slot);
    TransposedDrops drops{};
    if constexpr (kConfig.dropped) drops = draw_transposed(params_.mod, at);
    unsigned bits = this->attending(flags, slot);
    const int t = this->own_thread();
    const auto store = [&](int j) {
      ptx::store_floats(memory_.factors(t) + j * (128 * 16), s_[4 * j], s_[4 * j + 1], s_[4 * j + 2], s_[4 * j + 3]);
    };
    // Factors leave together, when the other warpgroup need not be waited for; or one by one, for their registers.
    const auto leave = [&](int j) {
      if constexpr (kConfig.frugal) store(j);
    };
    if constexpr (kConfig.frugal) ptx::barrier_wait(memory_.factors_empty(), (number & 1) ^ 1);
    if (kConfig.lse_rest && (flags & shared::kStepFar) != 0) {
      const ptx::Address low = memory_.low(slot) + 4 * shared::low_of_lane(threadIdx.x & 31);
      bits = Weights::template weigh<true, kConfig.lse_rest>(s_, p_, bits, drops, params_, at, lse, low, leave);
    } else if (this->bits_matter(flags)) {
      bits = Weights::template weigh<true, false>(s_, p_, bits, drops, params_, at, lse, 0, leave);
    } else {
      bits = Weights::template weigh<false, false>(s_, p_, bits, drops, params_, at, lse, 0, leave);
    }
    this->give_back(memory_.q_empty(slot));
    if constexpr (!kConfig.frugal) {
      ptx::barrier_wait(memory_.factors_empty(), (number & 1) ^ 1);
#pragma unroll
      for (int j = 0; j < 8; ++j) store(j);
    }
    ptx::store_word(memory_.bits(t), static_cast<int>(bits));
    if constexpr (kConfig.dropped) ptx::store_word(memory_.draws(t), static_cast<int>(drops.bits));
    ptx::barrier_arrive_by_warp(memory_.factors_full());
  }

  ptx::PackedRing q_{0}, d_o_{0};
  float s_[32];  // registers: S, then factors: 64 keys x 64 queries
  unsigned p_[16];
  float d_v_[kConfig.v_panels() * 32];  // 64 keys x columns
};

}  // namespace heddle
