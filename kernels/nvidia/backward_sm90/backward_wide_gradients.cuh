// The warpgroup of gradients: dP^T of the CTA's 64 keys, dS, and dK, which stays in its registers. It leaves dS in
// shared memory for dQ.
#pragma once

#include "backward_sm90/backward_wide_role.cuh"

namespace heddle {

/// X dt/ds of a thread's elements, where the warpgroup of scores left them.
struct WideFactors {
  ptx::Address at;
};
__device__ __forceinline__ void read_factors(const WideFactors& from, int j, float (&four)[4]) {
  ptx::load_floats(from.at + j * (128 * 16), four);
}

template <auto kConfig>
class WideGradients : WideRole<kConfig> {
  using Base = WideRole<kConfig>;
  using Base::memory_;
  using Base::params_;
  using Base::steps_;
  using typename Base::Numbers;
  using typename Base::Weights;

 public:
  using Base::Base;

  __device__ __forceinline__ void run() {
    ptx::forget(d_k_);
    if (steps_ > 0) walk();
    // By way of queries that came before the last ones: no others come.
    const int slot = steps_ > 0 ? steps_ % kConfig.q_stages : 0;
    this->template leave<kConfig.d_k_type>(params_.d_k, 1, kConfig.qk_dim, d_k_, params_.scale, memory_.queries(slot));
  }

 private:
  __device__ __forceinline__ void walk() {
    ptx::forget(d_p_);
    ptx::barrier_wait(memory_.v_full(), 0);
    issue_d_p();
    for (int number = 0;; ++number) {
      // In flight: dK of the step before, dP of this one.
      const int slot = slot_of(q_);
      ptx::wgmma_wait<kConfig.d_o_slots()>();
      ptx::touch(d_k_);
      if (number > 0) this->give_back(memory_.q_empty(slot == 0 ? kConfig.q_stages - 1 : slot - 1));
      ptx::barrier_wait(memory_.q_full(slot), parity_of(q_));  // its numbers and its record
      const int flags = this->flags_of(slot);
      Numbers deltas;  // loaded beside products, where they have registers
      deltas.set(memory_.delta(slot) + this->lane_offset());
      if constexpr (kConfig.d_o_halves) {
        ptx::wgmma_wait<1>();
        give_d_o_back();
      }
      ptx::wgmma_wait<0>();
      ptx::touch(d_p_);
      give_d_o_back();
      differentiate(flags, slot, number, deltas);
      if constexpr (kConfig.d_q) store_d_s(number);
      q_.advance(kConfig.q_stages);
      if (number + 1 == steps_) break;
      issue_wide_gradient(d_k_, d_s_, memory_.queries(slot), number > 0);
      issue_d_p();
    }
    issue_wide_gradient(d_k_, d_s_, memory_.queries((steps_ - 1) % kConfig.q_stages), steps_ > 1);
    ptx::wgmma_wait<0>();
    ptx::touch(d_k_);
  }

  /// A buffer of dO has been read here.
  __device__ __forceinline__ void give_d_o_back() {
    this->give_back(memory_.d_o_empty(slot_of(d_o_)));
    d_o_.advance(kConfig.d_o_stages);
  }

  /// A product for each buffer of dO.
  __device__ __forceinline__ void issue_d_p() {
    ptx::PackedRing d_o = d_o_;
    ptx::barrier_wait(memory_.d_o_full(slot_of(d_o)), parity_of(d_o));
    if constexpr (kConfig.d_o_halves) {
      constexpr int kHalf = 2 * shared::kPanelColumns;
      issue_wide_scores<kHalf>(d_p_, memory_.values(), memory_.d_o(slot_of(d_o)));
      d_o.advance(kConfig.d_o_stages);
      ptx::barrier_wait(memory_.d_o_full(slot_of(d_o)), parity_of(d_o));
      issue_wide_scores<kConfig.v_dim - kHalf, true>(d_p_, memory_.values() + 2 * shared::kWidePanelBytes,
                                                     memory_.d_o(slot_of(d_o)));
    } else {
      issue_wide_scores<kConfig.v_dim>(d_p_, memory_.values(), memory_.d_o(slot_of(d_o)));
    }
  }

  __device__ __forceinline__ void differentiate(int flags, int slot, int number, const Numbers& deltas) {
    TransposedOrigin at{};
    if constexpr (kConfig.weighted) at = this->origin(slot);
    const int t = this->own_thread();
    const WideFactors factors{memory_.factors(t)};
    ptx::barrier_wait(memory_.factors_full(), number & 1);
    const auto bits = static_cast<unsigned>(ptx::load_word(memory_.bits(t)));
    TransposedDrops drops{};
    if constexpr (kConfig.dropped) {
      drops = {static_cast<unsigned>(ptx::load_word(memory_.draws(t))), kept_weight(params_.mod, this->origin(slot))};
    }
    if (this->bits_matter(flags)) {
      Weights::template differentiate<true>(d_p_, factors, d_s_, bits, drops, params_, at, deltas);
    } else {
      Weights::template differentiate<false>(d_p_, factors, d_s_, bits, drops, params_, at, deltas);
    }
    ptx::barrier_arrive_by_warp(memory_.factors_empty());
  }

  /// A panel of the CTA's 64 keys, rows of queries.
  __device__ __forceinline__ void store_d_s(int number) const {
    ptx::barrier_wait(memory_.d_s_empty(), (number & 1) ^ 1);
    Base::store_panel(memory_.d_s(this->warpgroup_) + Base::d_s_of_lane(), d_s_);
    ptx::barrier_arrive_by_warp(memory_.d_s_stored());
  }

  ptx::PackedRing q_{0}, d_o_{0};
  float d_p_[32];  // registers: 64 keys x 64 queries
  unsigned d_s_[16];
  float d_k_[kConfig.qk_panels() * 32];  // 64 keys x columns
};

}  // namespace heddle
