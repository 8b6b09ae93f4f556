// Merges the maxima, sums and O that several waves, or several CTAs, have found for the same rows, in the order of the
// keys, so that the result does not depend on which was done first.
#pragma once

#include "portable/forward_mma/weights.cuh"
#include "backend/portable/shared/forward_mma_memory.h"

namespace heddle::portable {

/// Numbers of a row that are left for others: maximum, sum, O.
template <auto kConfig>
inline constexpr int kStateNumbers = kConfig.v_columns() + 2;

/// `row_at(i)` is where the numbers of the thread's row i stand.
template <auto kConfig, class F, class RowAt, int kFragments, int kOutFragments>
__device__ __forceinline__ void leave_state(RowAt&& row_at, const RowWeights<kConfig, F>& weights,
                                            const typename F::Out (&o)[kFragments][kOutFragments]) {
#pragma unroll
  for (int i = 0; i < RowWeights<kConfig, F>::kRows; ++i) {
    typename F::Real* to = row_at(i);
    if (F::first_of_row()) to[0] = weights.m[i], to[1] = weights.l[i];
#pragma unroll
    for (int d = 0; d < kOutFragments; ++d) {
#pragma unroll
      for (int c = 0; c < F::kOwnOuts; ++c) {
        to[2 + d * F::kOuts + F::own_out(c)] = o[i / F::kOwnRows][d].x[i % F::kOwnRows][c];
      }
    }
  }
}

/// The state that stands at row_at(i) joins the thread's.
template <auto kConfig, class F, class RowAt, int kFragments, int kOutFragments>
__device__ __forceinline__ void join_state(RowAt&& row_at, RowWeights<kConfig, F>& weights,
                                           typename F::Out (&o)[kFragments][kOutFragments]) {
#pragma unroll
  for (int i = 0; i < RowWeights<kConfig, F>::kRows; ++i) {
    const typename F::Real* from = row_at(i);
    const typename F::Real top = F::larger(weights.m[i], from[0]);
    const typename F::Real own = weights.factor_between(weights.m[i], top),
                           other = weights.factor_between(from[0], top);
    weights.m[i] = top;
    weights.l[i] = F::fused(weights.l[i], own, from[1] * other);
#pragma unroll
    for (int d = 0; d < kOutFragments; ++d) {
#pragma unroll
      for (int c = 0; c < F::kOwnOuts; ++c) {
        typename F::Real& x = o[i / F::kOwnRows][d].x[i % F::kOwnRows][c];
        x = F::fused(x, own, from[2 + d * F::kOuts + F::own_out(c)] * other);
      }
    }
  }
}

/// Merges the waves that share keys into the first one; true in it. By all threads of the CTA, when no wave reads keys
/// or values any more.
template <auto kConfig, class F, int kFragments, int kOutFragments>
__device__ __forceinline__ bool merge_waves(char* memory, int row_wave, int key_wave, RowWeights<kConfig, F>& weights,
                                            typename F::Out (&o)[kFragments][kOutFragments]) {
  using Real = typename F::Real;
  constexpr int kWaveRows = kConfig.wave_rows();
  const auto row_at = [&](int wave) {
    Real* rows = reinterpret_cast<Real*>(memory) +
                 (wave * kConfig.row_waves + row_wave) * (kWaveRows * kStateNumbers<kConfig>);
    return [rows](int i) {
      return rows + (i / F::kOwnRows * kConfig.shape().rows + F::own_row(i % F::kOwnRows)) * kStateNumbers<kConfig>;
    };
  };
  F::barrier();
  if (key_wave > 0) leave_state(row_at(key_wave), weights, o);
  F::barrier();
  if (key_wave > 0) return false;
#pragma unroll 1
  for (int wave = 1; wave < kConfig.key_waves; ++wave) join_state(row_at(wave), weights, o);
  return true;
}

/// A tile whose keys several CTAs share: what they leave each other in the workspace.
template <auto kConfig, class F>
class SplitParts {
 public:
  using Real = typename F::Real;

  __device__ __forceinline__ SplitParts(const ForwardMmaParams& params, int number)
      : word_(params.tiles.tickets + number),
        run_(params.tiles.run),
        parts_(static_cast<Real*>(params.parts) +
               static_cast<long long>(number) * kConfig.splits * (kRows * kStateNumbers<kConfig>)) {}

  template <class RowOf, int kFragments, int kOutFragments>
  __device__ __forceinline__ void leave(int split, RowOf&& row_of, const RowWeights<kConfig, F>& weights,
                                        const typename F::Out (&o)[kFragments][kOutFragments]) const {
    leave_state([&](int i) { return row_at(split, row_of(i)); }, weights, o);
  }

  /// By all threads of the CTA, after leave(): whether all others are done.
  __device__ __forceinline__ bool is_last(char* memory) const {
    F::fence();
    F::barrier();  // nor does any thread read `memory` any more
    int& last = *reinterpret_cast<int*>(memory);
    if (F::thread() == 0) last = count() ? 1 : 0;
    F::barrier();
    F::fence();
    return last != 0;
  }

  /// In the order of the keys. What the thread has is forgotten: its own part is among the others.
  template <class RowOf, int kFragments, int kOutFragments>
  __device__ __forceinline__ void merge(RowOf&& row_of, RowWeights<kConfig, F>& weights,
                                        typename F::Out (&o)[kFragments][kOutFragments]) const {
    weights.forget();
#pragma unroll
    for (int f = 0; f < kFragments; ++f) {
#pragma unroll
      for (int d = 0; d < kOutFragments; ++d) F::clear(o[f][d]);
    }
#pragma unroll 1
    for (int split = 0; split < kConfig.splits; ++split) {
      join_state([&](int i) { return row_at(split, row_of(i)); }, weights, o);
    }
  }

 private:
  static constexpr int kRows = kConfig.rows();

  __device__ __forceinline__ Real* row_at(int split, int row) const {
    return parts_ + (split * kRows + row) * kStateNumbers<kConfig>;
  }

  /// One more CTA is done: true in the last one. The word holds the run's number above the count; whatever else stands
  /// there is another run's and counts as 0. The last one leaves 0, so that a run repeated by a graph, which has the
  /// same number, begins anew.
  __device__ __forceinline__ bool count() const {
    shared::TicketWord found = *static_cast<const volatile shared::TicketWord*>(word_);
    for (;;) {
      const bool own = found >> shared::kTicketBits == run_;
      const shared::TicketWord before = own ? found : run_ << shared::kTicketBits;
      const bool last = (before & (shared::kMaxTiles - 1)) + 1 == kConfig.splits;
      const shared::TicketWord seen = F::compare_and_swap(word_, found, last ? 0 : before + 1);
      if (seen == found) return last;
      found = seen;
    }
  }

  shared::TicketWord* word_;
  shared::TicketWord run_;
  Real* parts_;
};

}  // namespace heddle::portable
