// Merges the maxima, sums and O that several waves, or several CTAs, have found for the same rows, in the order of the
// keys, so that the result does not depend on which was done first. Sizes of what CTAs leave: forward_mma_config.h.
#pragma once

#include "families/forward_mma/shared/forward_mma_params.h"
#include "portable/rows/row_states.cuh"
#include "backend/portable/shared/forward_mma_config.h"

namespace heddle::portable {

using shared::ForwardMmaParams;

/// Merges the waves that share keys into the first one; true in it. By all threads of the CTA, when no wave reads keys
/// or values any more.
template <auto kConfig, class F, int kFragments, int kOutFragments>
__device__ __forceinline__ bool merge_waves(char* memory, int row_wave, int key_wave, RowWeights<kConfig, F>& weights,
                                            typename F::Out (&o)[kFragments][kOutFragments]) {
  using Real = typename F::Real;
  constexpr int kWaveRows = kConfig.wave_rows(), kNumbers = kConfig.v_columns() + 2;
  const auto states_of = [&](int wave) {
    Real* rows = reinterpret_cast<Real*>(memory) + (wave * kConfig.row_waves + row_wave) * (kWaveRows * kNumbers);
    return [=](int i) {
      Real* row = rows + (i / F::kOwnRows * kConfig.shape().rows + F::own_row(i % F::kOwnRows)) * kNumbers;
      return RowState<Real>{row, row + 2};
    };
  };
  F::barrier();
  if (key_wave > 0) leave_state(states_of(key_wave), weights, o);
  F::barrier();
  if (key_wave > 0) return false;
#pragma unroll 1
  for (int wave = 1; wave < kConfig.key_waves; ++wave) join_state(states_of(wave), weights, o);
  return true;
}

/// A tile whose keys several CTAs share: what they leave each other in the workspace.
///   numbers [rows][splits][2]        maximum and sum of a row in each CTA
///   o       [splits][rows][v_columns]
template <auto kConfig, class F>
class SplitParts {
 public:
  using Real = typename F::Real;

  __device__ __forceinline__ SplitParts(const ForwardMmaParams& params, int number)
      : word_(params.tiles.tickets + number),
        launch_(params.tiles.launch),
        numbers_(static_cast<Real*>(params.parts) +
                 static_cast<long long>(number) * (kConfig.splits * kRows * (kConfig.v_columns() + 2))),
        o_(numbers_ + kRows * kConfig.splits * 2) {}

  /// Leaves the thread's rows, but for those without a query: `has(row)` tells.
  template <class RowOf, class Has, int kFragments, int kOutFragments>
  __device__ __forceinline__ void leave(int split, RowOf&& row_of, Has&& has, const RowWeights<kConfig, F>& weights,
                                        const typename F::Out (&o)[kFragments][kOutFragments]) const {
    leave_state(
        [&](int i) {
          const int row = row_of(i);
          return has(row) ? RowState<Real>{numbers_of(row) + 2 * split, o_of(split, row)} : RowState<Real>{};
        },
        weights, o);
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

  /// By all threads of the last CTA: merge_parts().
  template <class Has, class Visit>
  __device__ __forceinline__ void merge(RowWeights<kConfig, F> weights, Has&& has, Visit&& visit) const {
    const auto part_of = [&](int split, int row) {
      return RowState<Real>{numbers_of(row) + 2 * split, o_of(split, row)};
    };
    merge_parts<kConfig, F>(kRows, kConfig.splits, part_of, weights, has, visit);
  }

 private:
  static constexpr int kRows = kConfig.rows();

  __device__ __forceinline__ Real* numbers_of(int row) const { return numbers_ + row * (kConfig.splits * 2); }
  __device__ __forceinline__ Real* o_of(int split, int row) const {
    return o_ + (split * kRows + row) * kConfig.v_columns();
  }

  /// One more CTA is done: true in the last one. The word holds the run's number above the count; whatever else stands
  /// there is another run's and counts as 0. The last one leaves 0, so that a run repeated by a graph, which has the
  /// same number, begins anew.
  __device__ __forceinline__ bool count() const {
    shared::TicketWord found = *static_cast<const volatile shared::TicketWord*>(word_);
    for (;;) {
      const bool own = found >> shared::kTicketBits == launch_;
      const shared::TicketWord before = own ? found : launch_ << shared::kTicketBits;
      const bool last = (before & (shared::kMaxTiles - 1)) + 1 == kConfig.splits;
      const shared::TicketWord seen = F::compare_and_swap(word_, found, last ? 0 : before + 1);
      if (seen == found) return last;
      found = seen;
    }
  }

  shared::TicketWord* word_;
  shared::TicketWord launch_;
  Real* numbers_;
  Real* o_;
};

}  // namespace heddle::portable
