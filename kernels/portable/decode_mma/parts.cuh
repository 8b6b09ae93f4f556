// Rows of a maximum, a sum and O: CTAs of a tile leave them to each other in the workspace, waves of a CTA in shared
// memory (decode_mma_memory.h).
#pragma once

#include "families/decode_mma/shared/decode_mma_memory.h"
#include "families/decode_mma/shared/decode_mma_params.h"
#include "portable/rows/row_states.cuh"

namespace heddle::portable {

template <auto kConfig>
__device__ __forceinline__ RowState<float> row_of_part(float* part, int row) {
  float* numbers = part + row * shared::decode_row_floats(kConfig);
  return {numbers, numbers + 4};
}

/// The thread's rows join the states that stand at state_of(i), null where a row need not be left: in memory, for
/// beside the sums of two fragments of rows there are few registers. The new maximum and sum stand behind the old ones,
/// which other threads may be about to read.
template <auto kConfig, class F, class StateOf, int kFragments, int kOutFragments>
__device__ __forceinline__ void add_to_state(StateOf&& state_of, const RowWeights<kConfig, F>& weights,
                                             const typename F::Out (&o)[kFragments][kOutFragments]) {
#pragma unroll
  for (int i = 0; i < RowWeights<kConfig, F>::kRows; ++i) {
    const RowState<float> to = state_of(i);
    if (to.numbers == nullptr) continue;
    const float top = F::larger(weights.m[i], to.numbers[0]), own = weights.factor_between(weights.m[i], top),
                other = weights.factor_between(to.numbers[0], top);
    if (F::first_of_row()) to.numbers[2] = top, to.numbers[3] = F::fused(weights.l[i], own, to.numbers[1] * other);
#pragma unroll
    for (int d = 0; d < kOutFragments; ++d) {
#pragma unroll
      for (int c = 0; c < F::kOwnOuts; ++c) {
        float& x = to.o[d * F::kOuts + F::own_out(c)];
        x = F::fused(o[i / F::kOwnRows][d].x[i % F::kOwnRows][c], own, x * other);
      }
      F::fork();
    }
  }
}

/// A tile whose keys the CTAs of several gangs share.
template <auto kConfig, class F>
class SharedTile {
 public:
  /// `first`: the gang in which the tile begins.
  __device__ __forceinline__ SharedTile(const shared::DecodeMmaParams& params, int first, int tile)
      : word_(params.words + first * params.tiles + tile),
        launch_(params.launch),
        parts_(static_cast<float*>(params.parts)),
        first_(first),
        tiles_(params.tiles),
        tile_(tile) {}

  /// The word counts for this run from here on, whatever it held. By one thread of each CTA, long before arrive(): so
  /// arriving takes one operation. The word holds the run's number above the count; whatever else stands there is
  /// another run's. CTAs that come later find the number and change nothing.
  __device__ __forceinline__ void begin() const {
    const shared::TicketWord found = *static_cast<const volatile shared::TicketWord*>(word_);
    if (found >> shared::kTicketBits != launch_) F::compare_and_swap(word_, found, launch_ << shared::kTicketBits);
  }
  /// By one thread, behind what its CTA has left: whether it is the last of `count` CTAs. The last one leaves 0, so
  /// that a run repeated by a graph, which has the same number, begins anew.
  __device__ __forceinline__ bool arrive(int count) const {
    F::fence();
    const shared::TicketWord before = F::add(word_, 1);
    const bool last = static_cast<int>(before & (shared::kMaxTiles - 1)) + 1 == count;
    if (last) *word_ = 0;
    F::fence();
    return last;
  }

  /// The part that the CTA of a gang leaves. A gang may share two tiles: one that it began with, and one that goes on.
  __device__ __forceinline__ float* part_of(int gang) const {
    constexpr int kFloats = kConfig.live_rows * shared::decode_row_floats(kConfig);
    const long long number = 2LL * (gang * tiles_ + tile_) + (gang == first_ ? 1 : 0);
    return parts_ + number * kFloats;
  }

 private:
  shared::TicketWord* word_;
  shared::TicketWord launch_;
  float* parts_;
  int first_, tiles_, tile_;
};

}  // namespace heddle::portable
