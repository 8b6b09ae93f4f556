// Rows of a maximum, a sum and O: CTAs of a tile leave them to each other in the workspace, waves of a CTA in shared
// memory (decode_mma_memory.h).
#pragma once

#include "families/decode_mma/shared/decode_mma_memory.h"
#include "families/decode_mma/shared/decode_mma_params.h"
#include "portable/decode_mma/arrival_word.cuh"
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
  static constexpr unsigned kFloats = kConfig.live_rows * shared::decode_row_floats(kConfig);

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

  /// The tile's words as they stand, for begin() (ArrivalWord).
  struct Found {
    shared::TicketWord of_tile, of_group;
  };
  __device__ __forceinline__ Found found() const {
    return {tile_word().found(), groups_.count > 1 ? group_word().found() : 0};
  }
  __device__ __forceinline__ void begin(const Found& found) const {
    tile_word().begin(found.of_tile);
    if (groups_.count > 1) group_word().begin(found.of_group);
  }

  /// The part that the CTA leaves.
  __device__ __forceinline__ float* part() const { return part_of(gang_); }

  /// By all threads of the CTA, behind what they have left, which must be seen (`barrier`): merges the parts as far as
  /// they are there. True in the last CTA of the tile, which calls visit() as merge_parts() does. `last`: a word in
  /// shared memory.
  template <class Has, class Visit>
  __device__ __forceinline__ bool merge(int& last, const RowWeights<kConfig, F>& weights, Has&& has,
                                        Visit&& visit) const {
    if (groups_.count == 1) {
      const int count = to_ - from_ + 1;
      if (!is_last(last, tile_word(), count)) return false;
      merge_all(count, left_by(from_, 1), weights, has, visit);
      return true;
    }
    const int first = group_begin(), end = first + groups_.size <= to_ ? first + groups_.size : to_ + 1;
    if (!is_last(last, group_word(), end - first)) return false;
    const auto group = left_by(first, 1, kOfGroups);
    merge_all(end - first, left_by(first, 1), weights, has,
              [&](int row, int column, const auto& sums, const auto& merged) {
                leave_run(group(0, row), column, sums, merged);
              });
    F::barrier();
    if (!is_last(last, tile_word(), groups_.count)) return false;
    merge_all(groups_.count, left_by(from_, groups_.size, kOfGroups), weights, has, visit);
    return true;
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

  /// Whether the CTA is the last of `count`.
  __device__ __forceinline__ bool is_last(int& last, const ArrivalWord<F>& word, int count) const {
    if (F::thread() == 0) last = word.arrives_last(count) ? 1 : 0;
    F::barrier();
    return last != 0;
  }

  /// A gang may share two tiles, one that it began with and one that goes on, with words and parts for each.
  __device__ __forceinline__ int begins(int gang) const { return gang == from_ ? 1 : 0; }
  __device__ __forceinline__ int group_begin() const { return from_ + (gang_ - from_) / groups_.size * groups_.size; }
  __device__ __forceinline__ ArrivalWord<F> word_of(int gang, int number) const {
    return {words_ + static_cast<long long>(gang) * tiles_ * shared::kDecodeWords + number, launch_};
  }
  __device__ __forceinline__ ArrivalWord<F> tile_word() const { return word_of(from_, 0); }
  __device__ __forceinline__ ArrivalWord<F> group_word() const {
    const int first = group_begin();
    return word_of(first, 1 + begins(first));
  }
  static constexpr unsigned kPartBytes = kFloats * sizeof(float);
  /// Where a gang has its parts. (32 bits: where gangs share tiles CTAs are few, and have less than 2^32 bytes.)
  __device__ __forceinline__ char* parts_of(int gang) const {
    return reinterpret_cast<char*>(parts_) + static_cast<unsigned>(gang * tiles_ * 2) * kPartBytes;
  }
  __device__ __forceinline__ float* part_of(int gang) const {
    return reinterpret_cast<float*>(parts_of(gang) + begins(gang) * kPartBytes);
  }
  /// A group's row stands in place of its first part's, but its numbers so much behind that part's, which other threads
  /// may be about to read.
  static constexpr int kOfGroups = 2;
  /// left(i, row): what gang `first` + i * distance has left of a row. Steps from one gang to the next keep addresses
  /// cheap: whole ones for each of 16 parts were 375 instructions before the first read.
  __device__ __forceinline__ auto left_by(int first, int distance, int numbers = 0) const {
    char* const base = parts_of(first);
    const unsigned step = static_cast<unsigned>(distance * tiles_ * 2) * kPartBytes,
                   of_first = static_cast<unsigned>(begins(first)) * kPartBytes;
    return [=](int i, int row) {
      const unsigned at = static_cast<unsigned>(i) * step + (i == 0 ? of_first : 0);
      RowState<float> state = row_of_part<kConfig>(reinterpret_cast<float*>(base + at), row);
      state.numbers += numbers;
      return state;
    };
  }

  shared::TicketWord* words_;
  float* parts_;
  shared::TicketWord launch_;
  int from_, to_, gang_, tiles_;
  PartGroups groups_;
};

}  // namespace heddle::portable
