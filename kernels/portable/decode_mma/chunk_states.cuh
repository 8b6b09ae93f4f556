// States of chunks (key_chunks.cuh) as the threads of two warpgroups hold them: what a thread leaves of a chunk it
// joins with the next one itself, so rows neither pass through shared memory nor are sorted by columns on the way. A
// part of the workspace has decode_part_rows() rows: first the maximum and the sum of each, twice in turns, then four
// sums of each thread for each fragment of O, thread by thread.
#pragma once

#include "families/decode_mma/shared/decode_mma_memory.h"
#include "portable/decode_mma/key_chunks.cuh"
#include "portable/decode_mma/wide_rows.cuh"

namespace heddle::portable {

/// `Scores`: TileScores of the CTA, which has the thread's rows.
template <auto kConfig, class F, class Scores>
class ChunkStates {
  using Weights = RowWeights<kConfig, F>;
  using Chunks = ChunkedTile<kConfig, F>;

 public:
  static constexpr int kFragments = kConfig.wave_columns() / F::kOuts;

  __device__ __forceinline__ ChunkStates(char* memory, const Scores& scores)
      : first_column_(WideRows<kConfig, F, Scores>(memory, scores).first_column()),
        thread_((scores.key_wave() * kRowWaves + scores.row_wave()) * 32 + F::lane()),
        leads_(scores.key_wave() == 0 && F::first_of_row()),
        has_rows_(scores.row_wave() < kRowWaves),
        scores_(scores) {}

  /// The chunk's rows join what the CTA has left of those before it.
  template <class Out>
  __device__ __forceinline__ void join(const Chunks& chunks, Weights& weights, Out& o) const {
    if (!has_rows_) return;
    const float* const part = chunks.part();
    float of_left[kRows], own[kRows];
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const Numbers left = numbers_of(part, chunks.number() - 1, i);
      const float top = F::larger(left.m, weights.m[i]);
      of_left[i] = weights.factor_between(left.m, top);
      own[i] = weights.factor_between(weights.m[i], top);
      weights.m[i] = top;
      weights.l[i] = F::fused(left.l, of_left[i], weights.l[i] * own[i]);
    }
#pragma unroll
    for (int d = 0; d < kFragments; ++d) {
      const Run left = run_of(part, d);
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
#pragma unroll
        for (int c = 0; c < kColumns; ++c) {
          float& x = o[0][d].x[i][c];
          x = F::fused(left.x[i][c], of_left[i], x * own[i]);
        }
      }
      if (d % kRunsAtOnce == kRunsAtOnce - 1) F::fork();
    }
  }

  /// Leaves the rows, with what they have joined.
  template <class Out>
  __device__ __forceinline__ void leave(const Chunks& chunks, const Weights& weights, const Out& o) const {
    if (!has_rows_) return;
    float* const part = chunks.part();
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      // The numbers of the chunk before stay: other threads may be about to read them.
      if (leads_) *place_of_numbers(part, chunks.number(), i) = {weights.m[i], weights.l[i]};
    }
#pragma unroll
    for (int d = 0; d < kFragments; ++d) {
      Run run;
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
#pragma unroll
        for (int c = 0; c < kColumns; ++c) run.x[i][c] = o[0][d].x[i][c];
      }
      *reinterpret_cast<Run*>(part + place_of_run(d)) = run;
    }
  }

  /// Folds all parts of a tile, `parts` as ChunkedTile::find_parts() writes them. Calls visit(row, column, o, weights)
  /// as merge_parts() does, for the thread's rows and columns, where has(row).
  template <class Has, class Visit>
  __device__ __forceinline__ void fold_parts(const Chunks& chunks, const int* parts, Weights weights, Has&& has,
                                             Visit&& visit) const {
    if (!has_rows_) return;
#pragma unroll 1
    for (int d = 0; d < kFragments; ++d) {
      PartOfRow<kColumns> all[kRows]{}, group[kRows]{};
      bool begins = true;  // the group begins with the next part
#pragma unroll 1
      for (int first = 0; first < chunks.count(); first += kPartsAtOnce) {
        PartOfRow<kColumns> part[kPartsAtOnce][kRows];
#pragma unroll
        for (int j = 0; j < kPartsAtOnce; ++j) {
          const int number = parts[first + j];
          if (number >= 0) read(chunks.part(number), j, d, part[j]);
        }
#pragma unroll
        for (int j = 0; j < kPartsAtOnce; ++j) {
          if (parts[first + j] < 0) continue;
#pragma unroll
          for (int i = 0; i < kRows; ++i) group[i] = begins ? part[j][i] : fold<F>(weights, group[i], part[j][i]);
          begins = false;
        }
        const int end = first + kPartsAtOnce;
        if (end % shared::kChunksOfGroup != 0 && end < chunks.count()) continue;
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
          all[i] = end > shared::kChunksOfGroup ? fold<F>(weights, all[i], group[i]) : group[i];
        }
        begins = true;
      }
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        const int row = scores_.row_of(i);
        if (!has(row)) continue;
        weights.m[0] = all[i].m;
        weights.l[0] = all[i].l;
        visit(row, first_column_ + d * F::kOuts + F::own_out(0), all[i].o, weights);
      }
    }
  }

 private:
  static constexpr int kRows = F::kOwnRows, kColumns = F::kOwnOuts, kRunsAtOnce = 4, kPartsAtOnce = 4;
  static_assert(shared::kChunksOfGroup % kPartsAtOnce == 0 && kPartsAtOnce % 2 == 0);
  static_assert(kRows == 2 && kColumns == 2 && Scores::kFragments == 1);
  static constexpr int kPartRows = shared::decode_part_rows(kConfig), kRowWaves = kPartRows / kConfig.wave_rows();

  struct alignas(16) Run {
    float x[kRows][kColumns];
  };
  struct alignas(8) Numbers {
    float m, l;
  };

  /// Where the numbers of the thread's row i stand, in a part that ends with `chunk`.
  __device__ __forceinline__ Numbers* place_of_numbers(float* part, int chunk, int i) const {
    return reinterpret_cast<Numbers*>(part + 4 * scores_.row_of(i) + 2 * (chunk & 1));
  }
  __device__ __forceinline__ Numbers numbers_of(const float* part, int chunk, int i) const {
    return *reinterpret_cast<const Numbers*>(part + 4 * scores_.row_of(i) + 2 * (chunk & 1));
  }
  __device__ __forceinline__ int place_of_run(int d) const {
    constexpr int kThreads = kConfig.key_waves * kRowWaves * 32, kFloats = kRows * kColumns;
    return 4 * kPartRows + (d * kThreads + thread_) * kFloats;
  }
  __device__ __forceinline__ Run run_of(const float* part, int d) const {
    return *reinterpret_cast<const Run*>(part + place_of_run(d));
  }
  __device__ __forceinline__ void read(const float* part, int chunk, int d, PartOfRow<kColumns> (&rows)[kRows]) const {
    const Run run = run_of(part, d);
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const Numbers numbers = numbers_of(part, chunk, i);
      rows[i] = {numbers.m, numbers.l, {run.x[i][0], run.x[i][1]}};
    }
  }

  int first_column_, thread_;  // the latter: in a part
  bool leads_, has_rows_;
  const Scores& scores_;
};

}  // namespace heddle::portable
