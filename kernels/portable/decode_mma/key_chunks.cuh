// Chunks of a tile's keys (decode_mma_chunks.h): which of them this CTA walks, where it leaves their states, and how
// all that CTAs have left is folded. Whatever the batch, each state is the same, and they are folded in the same order.
#pragma once

#include "families/decode_mma/shared/decode_mma_memory.h"
#include "families/decode_mma/shared/decode_mma_params.h"
#include "portable/rows/row_states.cuh"

namespace heddle::portable {

/// A row's maximum and sum, and neighbours of O.
template <int kCount>
struct PartOfRow {
  float m, l, o[kCount];
};

/// Joins two parts, the one of the earlier keys first.
template <class F, class Weights, int kCount>
__device__ __forceinline__ PartOfRow<kCount> fold(const Weights& weights, const PartOfRow<kCount>& a,
                                                  const PartOfRow<kCount>& b) {
  PartOfRow<kCount> both;
  both.m = F::larger(a.m, b.m);
  const float of_a = weights.factor_between(a.m, both.m), of_b = weights.factor_between(b.m, both.m);
  both.l = F::fused(a.l, of_a, b.l * of_b);
#pragma unroll
  for (int e = 0; e < kCount; ++e) both.o[e] = F::fused(a.o[e], of_a, b.o[e] * of_b);
  return both;
}

template <auto kConfig, class F>
class ChunkedTile {
 public:
  ChunkedTile() = default;
  /// The tile's first unit is unit `first` of the line, and it has `units`. A chunk is of the gang that has its first
  /// unit.
  __device__ __forceinline__ ChunkedTile(const shared::DecodeMmaParams& params, const shared::LineCut& cut, int gang,
                                         int tile, int first, int units)
      : params_(&params),
        cut_(&cut),
        gang_(gang),
        tile_(tile),
        first_(first),
        units_(shared::chunk_units(kConfig, units)),
        count_((units + units_ - 1) / units_),
        begin_(chunk_from(gang)),
        end_(chunk_from(gang + 1)),
        ctas_(1),
        chunk_(begin_ - 1) {
    if (is_shared()) ctas_ = ctas();
  }

  /// On to the next chunk. The unit of the line behind it.
  __device__ __forceinline__ int next_end() {
    ++chunk_;
    return first_ + (chunk_ + 1) * units_;
  }
  __device__ __forceinline__ bool is_only_one() const { return count_ == 1; }
  /// The chunk is the CTA's last one of the tile.
  __device__ __forceinline__ bool is_last() const { return chunk_ + 1 == end_; }
  __device__ __forceinline__ bool is_shared() const { return end_ - begin_ < count_; }

  /// Where the tile is shared: counts the CTAs that have chunks of it.
  __device__ __forceinline__ ArrivalWord<F> word() const {
    const int gang = first_ >= cut_->begin(gang_) ? gang_ : cut_->gang_of(first_);
    return {params_->words + (static_cast<long long>(gang) * params_->tiles + tile_) * shared::kDecodeWords,
            params_->launch};
  }
  /// By one thread, behind what its CTA has left: whether all chunks are there now.
  __device__ __forceinline__ bool arrive() const { return word().arrives_last(ctas_); }

  /// The chunk joins what the CTA has left of its group.
  __device__ __forceinline__ bool joins() const { return joins(chunk_, begin_); }
  /// The chunk is the last one of a tile that this CTA has alone, and of whose group it has left the rest.
  __device__ __forceinline__ bool ends() const { return is_last() && !is_shared() && count_ <= shared::kChunksOfGroup; }
  __device__ __forceinline__ int number() const { return chunk_; }
  __device__ __forceinline__ int count() const { return count_; }
  /// The part that the chunk joins, and the one of that number.
  __device__ __forceinline__ float* part() const { return part(number_of(chunk_, gang_, begin_)); }
  __device__ __forceinline__ float* part(int number) const {
    constexpr int kFloats = shared::decode_part_rows(kConfig) * shared::decode_row_floats(kConfig);
    return static_cast<float*>(params_->parts) + static_cast<long long>(number) * kFloats;
  }

  /// Where columns of a row of the chunk join what the CTA has left of the chunk's group: that.
  template <int kCount>
  __device__ __forceinline__ PartOfRow<kCount> left(int row, int column) const {
    if (!joins()) return {};
    return read<kCount>(row_of(row), chunk_ - 1, column);
  }
  /// The state of columns of a row of the chunk joins what was left, `before`.
  template <int kCount, class Weights>
  __device__ __forceinline__ void leave(int row, int column, const float (&sums)[kCount], const Weights& merged,
                                        const PartOfRow<kCount>& before) const {
    const int chunk = chunk_;
    float* const part = row_of(row);
    PartOfRow<kCount> state = {merged.m[0], merged.l[0], {}};
#pragma unroll
    for (int e = 0; e < kCount; ++e) state.o[e] = sums[e];
    if (joins(chunk, begin_)) state = fold<F>(merged, before, state);
#pragma unroll
    for (int e = 0; e < kCount; ++e) part[4 + column + e] = state.o[e];
    // The numbers of the chunk before stay: other threads may be about to read them.
    float* const numbers = part + 2 * (chunk & 1);
    if (column == 0) numbers[0] = state.m, numbers[1] = state.l;
  }

  /// Writes into `parts` which part ends with each chunk, or -1. By all threads; each one's numbers need a barrier.
  __device__ __forceinline__ void find_parts(int* parts) const {
    for (int chunk = F::thread(); chunk < shared::kMostChunks; chunk += F::threads()) {
      int part = -1;
      if (chunk < count_) {
        const int gang = cut_->gang_of(first_ + chunk * units_), begin = chunk_from(gang);
        const bool ends = chunk + 1 == count_ || !joins(chunk + 1, begin) || chunk + 1 == chunk_from(gang + 1);
        if (ends) part = number_of(chunk, gang, begin);
      }
      parts[chunk] = part;
    }
  }

  /// Folds all chunks of `rows` rows by all threads of the CTA. Calls visit(row, column, o, weights) as merge_parts()
  /// does.
  template <class Has, class Visit>
  __device__ __forceinline__ void fold_parts(const int* parts, RowWeights<kConfig, F> weights, Has&& has,
                                             Visit&& visit) const {
    constexpr int kRun = kRunOfPart<float>, kRuns = kConfig.v_columns() / kRun, kGroup = shared::kChunksOfGroup;
    for (int i = F::thread(); i < kConfig.live_rows * kRuns; i += F::threads()) {
      const int row = i / kRuns, column = i % kRuns * kRun;
      if (!has(row)) continue;
      PartOfRow<kRun> all{};
#pragma unroll 1
      for (int first = 0; first < count_; first += kGroup) {
        PartOfRow<kRun> part[kGroup];
#pragma unroll
        for (int j = 0; j < kGroup; ++j) {
          const int number = parts[first + j];
          if (number >= 0)
            part[j] = read<kRun>(this->part(number) + row * shared::decode_row_floats(kConfig), j, column);
        }
        PartOfRow<kRun> group{};
        bool any = false;
#pragma unroll
        for (int j = 0; j < kGroup; ++j) {
          if (parts[first + j] < 0) continue;
          group = any ? fold<F>(weights, group, part[j]) : part[j];
          any = true;
        }
        all = first > 0 ? fold<F>(weights, all, group) : group;
      }
      weights.m[0] = all.m;
      weights.l[0] = all.l;
      visit(row, column, all.o, weights);
    }
  }

 private:
  /// CTAs that have chunks of the tile. A gang whose part lies within a chunk has none.
  __device__ __forceinline__ int ctas() const {
    if (units_ > static_cast<int>(cut_->share)) return count_;
    return cut_->gang_of(first_ + (count_ - 1) * units_) - cut_->gang_of(first_) + 1;
  }
  /// The first chunk whose units begin in the gang's part of the line, or behind it.
  __device__ __forceinline__ int chunk_from(int gang) const {
    const int before = cut_->begin(gang) - first_;
    if (before <= 0) return 0;
    const int chunk = (before + units_ - 1) / units_;
    return chunk < count_ ? chunk : count_;
  }
  /// The chunk joins the part of the one before it. `begin`: the first chunk of the gang that has it, which alone
  /// leaves a group's first chunks as one part, if the group began there.
  __device__ __forceinline__ static bool joins(int chunk, int begin) {
    constexpr int kGroup = shared::kChunksOfGroup;
    return chunk % kGroup != 0 && chunk / kGroup * kGroup >= begin;
  }
  /// The number of a gang's part.
  __device__ __forceinline__ int number_of(int chunk, int gang, int begin) const {
    constexpr int kGroup = shared::kChunksOfGroup, kGroups = shared::kMostGroups;
    const int group = chunk / kGroup;
    // Others may still be to read what this CTA left of a tile that began before, when it goes on to the next one.
    const int own = begin == 0                ? group
                    : group * kGroup >= begin ? kGroups + group - 1
                                              : 2 * kGroups - 2 + chunk % kGroup;
    return (gang * params_->tiles + tile_) * shared::kPartsOfChunks + own;
  }
  /// A row of the part that the chunk joins.
  __device__ __forceinline__ float* row_of(int row) const { return part() + row * shared::decode_row_floats(kConfig); }
  /// A row of a part that ends with `chunk`.
  template <int kCount>
  __device__ __forceinline__ static PartOfRow<kCount> read(const float* row, int chunk, int column) {
    struct alignas(kCount < 4 ? 8 : 16) Run {
      float x[kCount];
    };
    struct alignas(8) Numbers {
      float m, l;
    };
    const Numbers numbers = *reinterpret_cast<const Numbers*>(row + 2 * (chunk & 1));
    const Run run = *reinterpret_cast<const Run*>(row + 4 + column);
    PartOfRow<kCount> part = {numbers.m, numbers.l, {}};
#pragma unroll
    for (int e = 0; e < kCount; ++e) part.o[e] = run.x[e];
    return part;
  }
  const shared::DecodeMmaParams* params_;
  const shared::LineCut* cut_;
  int gang_, tile_, first_;
  int units_, count_;
  int begin_, end_;  // the CTA's own chunks
  int ctas_;         // that have some
  int chunk_;        // that is walked
};

}  // namespace heddle::portable
