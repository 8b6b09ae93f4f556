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

/// Sums of o from `column` on, and in row 0 of `merged` the row's maximum and sum, are left in a part.
template <int kCount, class Weights>
__device__ __forceinline__ void leave_run(const RowState<float>& left, int column, const float (&sums)[kCount],
                                          const Weights& merged) {
#pragma unroll
  for (int e = 0; e < kCount; ++e) left.o[column + e] = sums[e];
  if (column == 0) left.numbers[0] = merged.m[0], left.numbers[1] = merged.l[0];
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

/// CTAs that have left a part each meet in groups: the last one of a group merges its parts, and the last one of these
/// merges what the groups have. One CTA alone would read all parts of a tile at the rate of one multiprocessor: 170 us
/// for 128 parts of 16 rows of 512 columns (H100).
struct PartGroups {
  int size, count;  // gangs of a group; groups

  static constexpr int kBytes = 384 << 10;  // that one CTA merges sooner than two after one another

  /// For the gangs from `from` to `to`, whose parts have so many bytes.
  __device__ __forceinline__ PartGroups(int from, int to, int bytes) : size(to - from + 1), count(1) {
    if (size <= 4 || size <= kBytes / bytes) return;
    const int parts = size;
    size = 2;
    while (size * size < parts) ++size;
    count = (parts + size - 1) / size;
  }
};

/// A tile whose keys the CTAs of several gangs share, or one gang alone has.
template <auto kConfig, class F>
class SharedTile {
  static constexpr int kFloats = kConfig.live_rows * shared::decode_row_floats(kConfig);

 public:
  /// For the CTA of `gang`; the tile's keys are those of the gangs from `from` to `to`.
  __device__ __forceinline__ SharedTile(const shared::DecodeMmaParams& params, int from, int to, int gang, int tile)
      : words_(params.words + static_cast<long long>(tile) * shared::kDecodeWords),
        parts_(static_cast<float*>(params.parts) + static_cast<long long>(tile) * (2 * kFloats)),
        launch_(params.launch),
        from_(from),
        to_(to),
        gang_(gang),
        tiles_(params.tiles),
        groups_(from, to, kFloats * static_cast<int>(sizeof(float))) {}

  __device__ __forceinline__ bool is_shared() const { return from_ < to_; }

  /// The words count for this run from here on, whatever they held. By one thread of each CTA, long before it arrives:
  /// so arriving takes one operation.
  __device__ __forceinline__ void begin() const {
    begin_word(tile_word());
    if (groups_.count > 1) begin_word(group_word());
  }

  /// The part that the CTA leaves.
  __device__ __forceinline__ float* part() const { return part_of(gang_); }

  /// By all threads of the CTA, behind what they have left, which must be seen (`barrier`): merges the parts as far as
  /// they are there. True in the last CTA of the tile, which calls visit() as merge_parts() does. `last`: a word in
  /// shared memory.
  template <class Has, class Visit>
  __device__ __forceinline__ bool merge(int& last, const RowWeights<kConfig, F>& weights, Has&& has,
                                        Visit&& visit) const {
    const int first = group_begin(), end = first + groups_.size <= to_ ? first + groups_.size : to_ + 1;
    // One loop for the CTA's group, if there are several, and then for the tile: this is a quarter of the kernel's
    // code, and the second time it need not be fetched.
#pragma unroll 1
    for (bool whole = groups_.count == 1;; whole = true) {
      const bool of_groups = whole && groups_.count > 1;
      const int begin = whole ? from_ : first, distance = of_groups ? groups_.size : 1;
      const int count = of_groups ? groups_.count : whole ? to_ - from_ + 1 : end - first;
      if (!is_last(last, whole ? tile_word() : group_word(), count)) return false;
      merge_all(
          count, [&](int i, int row) { return left_by(begin + i * distance, row, of_groups); }, weights, has,
          [&](int row, int column, const auto& sums, const auto& merged) {
            if (whole) return visit(row, column, sums, merged);
            leave_run(left_by(first, row, true), column, sums, merged);
          });
      if (whole) return true;
      F::barrier();
    }
  }

 private:
  /// Rows of all parts.
  template <class PartOf, class Has, class Visit>
  __device__ __forceinline__ static void merge_all(int count, PartOf&& part_of, const RowWeights<kConfig, F>& weights,
                                                   Has&& has, Visit&& visit) {
    if constexpr (kConfig.wide()) {
      merge_long_rows<kConfig, F>(kConfig.live_rows, count, part_of, weights, has, visit);
    } else {
      constexpr int kPartsAtOnce = 16;
      merge_parts<kConfig, F, kPartsAtOnce>(kConfig.live_rows, count, part_of, weights, has, visit);
    }
  }

  /// The word holds the run's number above the count; whatever else stands there is another run's. CTAs that come later
  /// find the number and change nothing.
  __device__ __forceinline__ void begin_word(shared::TicketWord* word) const {
    const shared::TicketWord found = *static_cast<const volatile shared::TicketWord*>(word);
    if (found >> shared::kTicketBits != launch_) F::compare_and_swap(word, found, launch_ << shared::kTicketBits);
  }
  /// Whether the CTA is the last of `count`. The last one leaves 0, so that a run repeated by a graph, which has the
  /// same number, begins anew.
  __device__ __forceinline__ bool is_last(int& last, shared::TicketWord* word, int count) const {
    if (F::thread() == 0) {
      const shared::TicketWord before = F::arrive(word);
      last = static_cast<int>(before & (shared::kMaxTiles - 1)) + 1 == count ? 1 : 0;
      if (last != 0) *word = 0;
    }
    F::barrier();
    return last != 0;
  }

  /// A gang may share two tiles, one that it began with and one that goes on, with words and parts for each.
  __device__ __forceinline__ int begins(int gang) const { return gang == from_ ? 1 : 0; }
  __device__ __forceinline__ int group_begin() const { return from_ + (gang_ - from_) / groups_.size * groups_.size; }
  __device__ __forceinline__ shared::TicketWord* word_of(int gang, int number) const {
    return words_ + static_cast<long long>(gang) * tiles_ * shared::kDecodeWords + number;
  }
  __device__ __forceinline__ shared::TicketWord* tile_word() const { return word_of(from_, 0); }
  __device__ __forceinline__ shared::TicketWord* group_word() const {
    const int first = group_begin();
    return word_of(first, 1 + begins(first));
  }
  __device__ __forceinline__ float* part_of(int gang) const {
    return parts_ + (static_cast<long long>(gang) * tiles_ * 2 + begins(gang)) * kFloats;
  }
  /// Where a row stands that a gang has left, or the group that begins with it: a group's O in place of its first
  /// part's, its numbers behind that part's, which other threads may be about to read.
  __device__ __forceinline__ RowState<float> left_by(int gang, int row, bool is_group) const {
    RowState<float> state = row_of_part<kConfig>(part_of(gang), row);
    if (is_group) state.numbers += 2;
    return state;
  }

  shared::TicketWord* words_;
  float* parts_;
  shared::TicketWord launch_;
  int from_, to_, gang_, tiles_;
  PartGroups groups_;
};

}  // namespace heddle::portable
