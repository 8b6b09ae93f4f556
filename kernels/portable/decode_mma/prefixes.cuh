// Sequences that share their first keys (kConfig.prefixed()). Of prefix_sequences that stand beside each other, from a
// multiple of it on, those of one group that share a unit of keys or more have one tile for these: it stands on the
// line before the first one's own tile. All of their own tiles begin behind the shared keys. What a row has of both
// tiles is joined by the CTA that comes last.
#pragma once

#include "families/decode_mma/shared/decode_mma_memory.h"
#include "families/decode_mma/shared/decode_mma_params.h"
#include "portable/decode_mma/own_span.cuh"
#include "portable/decode_mma/parts.cuh"
#include "portable/rows/tile.cuh"
#include "sequences/sequence_rows.cuh"

namespace heddle::portable {

/// Which sequences share keys, and the numbers of those near the one that a wave walks.
template <auto kConfig, class F>
class Prefixes {
 public:
  __device__ __forceinline__ explicit Prefixes(const shared::DecodeMmaParams& params) : params_(params) {}

  /// Finds the keys that sequence i, which is `there`, shares, and takes them out of the runs of keys that `found` has.
  /// By all lanes of a wave, whose sequences follow each other from a multiple of their number on.
  template <class Found>
  __device__ __forceinline__ void share(int i, bool there, Found& found) const {
    int group = -1, keys = 0;
    if (there) {
      constexpr int kStep = kConfig.prefix_step();
      keys = sequences::entry(params_.prefix_len, i, found.keys.leading()) / kStep * kStep;
      const long long number = sequences::number(params_.prefix_group, i);
      if (keys > 0 && number >= 0 && number <= 0x7fffffff) group = static_cast<int>(number);
    }
    constexpr int kNear = kConfig.prefix_sequences;
    constexpr unsigned kAll = kNear == 32 ? ~0U : (1U << kNear % 32) - 1;
    const unsigned mates = F::lanes_with(group) & kAll << F::lane() / kNear * kNear;
    const int first = __ffs(static_cast<int>(mates)) - 1;
    const int least = least_of(mates, there, group, keys);
    const bool shares = group >= 0 && (mates & (mates - 1)) != 0;
    found.first = shares ? i - F::lane() + first : -1;
    found.shared_keys = shares ? least : 0;
    found.shared_units = shares && first == F::lane() ? least / kConfig.prefix_step() : 0;
    found.keys.leave_out(found.shared_keys);
  }

  /// The lanes' sequences, from `first` on, are the wave's near ones.
  template <class Found>
  __device__ __forceinline__ void keep(int first, const Found& found) const {
    const int i = first + F::lane(), at = i % shared::kNearSequences;
    shared::PrefixTable& table = near_sequences<kConfig>();
    shared::SequenceSpan span = found.span;
    span.kv_end = found.kv_end;
    table.spans[at] = span;
    table.first[at] = i < params_.sequences ? found.first : -1;
    table.keys[at] = found.shared_keys;
    F::wave_barrier();
  }
  // Numbers of a near sequence.
  __device__ __forceinline__ static const shared::SequenceSpan& span(int i) { return near_span<kConfig>(i); }
  __device__ __forceinline__ static int first(int i) {
    return near_sequences<kConfig>().first[i % shared::kNearSequences];
  }
  __device__ __forceinline__ static int keys(int i) {
    return near_sequences<kConfig>().keys[i % shared::kNearSequences];
  }

 private:
  /// The smallest number of keys of the lanes with the bits of `mates`, which are of a group.
  __device__ __forceinline__ static int least_of(unsigned mates, bool there, int group, int keys) {
    constexpr int kNear = kConfig.prefix_sequences;
    // Mostly all sequences near each other are of one group.
    const int of_first = F::from_lane(group, F::lane() / kNear * kNear);
    if (!F::any_of_wave(there && group != of_first)) {
      int least = there ? keys : 0x7fffffff;
#pragma unroll
      for (int distance = 1; distance < kNear; distance *= 2) {
        const int others = F::from_lane(least, F::lane() ^ distance);
        least = others < least ? others : least;
      }
      return least;
    }
    int least = keys;
#pragma unroll 1
    for (int lane = 0; lane < 32; ++lane) {
      const int others = F::from_lane(keys, lane);
      if ((mates >> lane & 1U) != 0 && others < least) least = others;
    }
    return least;
  }

  const shared::DecodeMmaParams& params_;
};

/// The rows of a tile that are joined with those of another: of keys that sequences share, or of a sequence's own keys
/// behind such.
template <auto kConfig, class F>
class JoinedRows {
 public:
  /// `number`: of the tile among those of each sequence.
  __device__ __forceinline__ JoinedRows(const shared::DecodeMmaParams& params, const Tile<kConfig>& tile, int number)
      : params_(params), tile_(tile), number_(number) {}

  /// The words of its sequences count for this run from here on. By all threads.
  __device__ __forceinline__ void begin() const {
    for_each_sequence([&](int, int b) { word(b).begin(word(b).found()); });
  }

  /// Where the tile leaves a row.
  __device__ __forceinline__ RowState<float> row(int row) const { return part_of(tile_.is_shared ? 0 : 1, row); }

  /// By all threads, behind what they have left. Rows whose other part is there are visited as merge_parts() does.
  /// `arrived`: int [prefix_sequences] in shared memory.
  template <class Visit>
  __device__ __forceinline__ void join(int* arrived, const RowWeights<kConfig, F>& weights, Visit&& visit) const {
    F::barrier();
    for_each_sequence([&](int slot, int b) { arrived[slot] = word(b).arrives_last(shared::kJoinedParts) ? 1 : 0; });
    F::barrier();
    const auto has = [&](int row) { return tile_.has(row) && arrived[row / kConfig.own_rows()] != 0; };
    merge_parts<kConfig, F, shared::kJoinedParts>(
        kConfig.live_rows, shared::kJoinedParts, [&](int i, int row) { return part_of(i, row); }, weights, has, visit);
  }

 private:
  /// Calls visit(slot, b) for the sequences whose rows the tile has, each by one thread.
  template <class Visit>
  __device__ __forceinline__ void for_each_sequence(Visit&& visit) const {
    const int slot = F::thread(), row = slot * kConfig.own_rows();
    if (slot < kConfig.prefix_sequences && tile_.has_sequence(row)) visit(slot, tile_.batch_of(row));
  }
  __device__ __forceinline__ ArrivalWord<F> word(int b) const {
    return {params_.joined_words + static_cast<long long>(b) * params_.tiles + number_, params_.launch};
  }
  /// Part 0 is of shared keys, which come first.
  __device__ __forceinline__ RowState<float> part_of(int part, int row) const {
    const long long at = static_cast<long long>(tile_.batch_of(row)) * params_.tiles + number_;
    float* const rows = params_.joined_rows + (at * shared::kJoinedParts + part) * kPart;
    return row_of_part<kConfig>(rows, row % kConfig.own_rows());
  }
  static constexpr int kPart = kConfig.own_rows() * shared::decode_row_floats(kConfig);

  const shared::DecodeMmaParams& params_;
  const Tile<kConfig>& tile_;
  int number_;
};

}  // namespace heddle::portable
