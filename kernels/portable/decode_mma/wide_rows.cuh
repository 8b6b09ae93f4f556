// Waves of keys that have columns of o each (kConfig.wide()): sums of o of all columns would not fit in one wave's
// registers. Each wave computes the scores of its own keys of a block; those that have the same rows share the rows'
// largest scores and their weights in shared memory, and each multiplies all weights by its columns of the values.
#pragma once

#include "families/decode_mma/shared/decode_mma_memory.h"
#include "portable/decode_mma/parts.cuh"
#include "portable/rows/row_states.cuh"
#include "portable/rows/row_weights.cuh"
#include "ptx/mma_sync.cuh"

namespace heddle::portable {

/// `Scores`: TileScores of the CTA, which has the thread's rows.
template <auto kConfig, class F, class Scores>
class WideRows {
 public:
  static constexpr bool kShares = true;
  static constexpr int kColumns = kConfig.wave_columns(), kRows = Scores::kOwnRows;

  __device__ __forceinline__ WideRows(char* memory, const Scores& scores)
      : memory_(memory),
        weights_(reinterpret_cast<Weights*>(memory + kMemory.weights)),
        tops_(reinterpret_cast<float*>(memory + kMemory.tops)),
        scores_(scores) {}

  /// Whether the wave has rows. Waves whose products are one have theirs, though a tile have fewer.
  __device__ __forceinline__ bool has_rows() const {
    return !kConfig.by_warpgroups() || scores_.row_wave() * kConfig.wave_rows() < kConfig.live_rows;
  }
  /// The first one of the wave's columns of o.
  __device__ __forceinline__ int first_column() const { return scores_.key_wave() * kColumns; }

  /// The largest scores become those of all waves that have the rows.
  __device__ __forceinline__ void operator()(float (&tops)[kRows]) const {
    leave(tops);
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
#pragma unroll
      for (int wave = 0; wave < kConfig.key_waves; ++wave) tops[i] = F::larger(tops[i], *number(wave, i));
    }
  }
  /// The sums of the wave's keys become those of all keys, added in the order of the waves.
  __device__ __forceinline__ void add(float (&sums)[kRows]) const {
    leave(sums);
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      float sum = 0;
#pragma unroll
      for (int wave = 0; wave < kConfig.key_waves; ++wave) sum += *number(wave, i);
      sums[i] = sum;
    }
  }

  /// O += P V of a block, of whose weights P the wave has those of its keys: the weights of one wave after those of
  /// another, so that few are in registers.
  template <class Out, class Stream>
  __device__ __forceinline__ void add_values(Out& o, const typename F::Scores (&p)[Scores::kFragments][1],
                                             const Stream& stream) const {
#pragma unroll
    for (int f = 0; f < Scores::kFragments; ++f) F::pack(*place(scores_.key_wave(), f), p[f][0]);
    meet();
#pragma unroll 1
    for (int wave = 0; wave < kConfig.key_waves; ++wave) {
      Weights weights[Scores::kFragments];
#pragma unroll
      for (int f = 0; f < Scores::kFragments; ++f) weights[f] = *place(wave, f);
      F::add_values(o, weights, stream, wave * F::kKeys, first_column() / F::kOuts);
    }
  }

  /// Calls visit(row, column, sums, weights, found) for rows with has(row), as merge_parts() does. `found`: what
  /// before(row, column) returned.
  template <class Out, class Has, class Before, class Visit>
  __device__ __forceinline__ void visit(const RowWeights<kConfig, F>& weights, const Out& o, Has&& has, Before&& before,
                                        Visit&& visit) const {
    if constexpr (kConfig.by_warpgroups()) {
      visit_in_memory(weights, o, has, before, visit);
    } else {
      visit_own(weights, o, has, [&](int row, int column, const auto& sums, const auto& merged) {
        visit(row, column, sums, merged, before(row, column));
      });
    }
  }

 private:
  using Weights = typename F::Weights;
  static constexpr shared::DecodeMmaMemory kMemory = shared::decode_mma_memory(kConfig);
  static_assert(!kConfig.wide() || kColumns % F::kOuts == 0);
  static_assert(!kConfig.wide() || Scores::kKeyFragments == 1 || kConfig.takes_turns());

  /// The thread's rows and columns.
  template <class Out, class Has, class Visit>
  __device__ __forceinline__ void visit_own(RowWeights<kConfig, F> weights, const Out& o, Has&& has,
                                            Visit&& visit) const {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int row = scores_.row_of(i);
      if (!has(row)) continue;
      weights.m[0] = weights.m[i];
      weights.l[0] = weights.l[i];
#pragma unroll
      for (int d = 0; d < kColumns / F::kOuts; ++d) {
#pragma unroll
        for (int c = 0; c < F::kOwnOuts; c += F::kOutRun) {
          float sums[F::kOutRun];
#pragma unroll
          for (int e = 0; e < F::kOutRun; ++e) sums[e] = o[i / F::kOwnRows][d].x[i % F::kOwnRows][c + e];
          visit(row, first_column() + d * F::kOuts + F::own_out(c), sums, weights);
        }
      }
    }
  }

  /// All rows, by all threads, through the memory of the queries, which have been read: registers are named one by one,
  /// and code for each of 128 of them would take longer to fetch than rows take to store.
  template <class Out, class Has, class Before, class Visit>
  __device__ __forceinline__ void visit_in_memory(const RowWeights<kConfig, F>& weights, const Out& o, Has&& has,
                                                  Before&& before, Visit&& visit) const {
    constexpr int kAtOnce = 32;
    static_assert(kAtOnce * shared::decode_row_floats(kConfig) * sizeof(float) <=
                  kConfig.rows() * kConfig.qk_columns() * kConfig.element_bytes());
    float* const rows = reinterpret_cast<float*>(memory_ + shared::forward_mma_memory(kConfig).q);
#pragma unroll 1
    for (int first = 0; first < kConfig.live_rows; first += kAtOnce) {
      const auto own = [&](int i) {
        const int row = scores_.row_of(i) - first;
        if (row < 0 || row >= kAtOnce || !has(first + row)) return RowState<float>{};
        const RowState<float> state = row_of_part<kConfig>(rows, row);
        return RowState<float>{state.numbers, state.o + first_column()};
      };
      leave_state(own, weights, o);
      F::barrier();
      visit_long_rows<kConfig, F>(
          kConfig.live_rows - first < kAtOnce ? kConfig.live_rows - first : kAtOnce,
          [&](int row) { return row_of_part<kConfig>(rows, row); }, weights, [&](int row) { return has(first + row); },
          [&](int row, int column) { return before(first + row, column); },
          [&](int row, int column, const auto& sums, const auto& merged, const auto& found) {
            visit(first + row, column, sums, merged, found);
          });
      F::barrier();
    }
  }

  /// Until all waves that have the wave's rows have come.
  __device__ __forceinline__ void meet() const { ptx::barrier_of<32 * kConfig.key_waves>(1 + scores_.row_wave()); }
  __device__ __forceinline__ float* number(int wave, int i) const {
    return tops_ + wave * kConfig.rows() + scores_.row_of(i);
  }
  /// Numbers of the thread's rows, for all waves that have them. (Each block has a barrier of all waves before them.)
  __device__ __forceinline__ void leave(const float (&numbers)[kRows]) const {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      if (F::first_of_row()) *number(scores_.key_wave(), i) = numbers[i];
    }
    meet();
  }
  __device__ __forceinline__ Weights* place(int wave, int f) const {
    return weights_ + ((wave * kConfig.row_waves + scores_.row_wave()) * Scores::kFragments + f) * 32 + F::lane();
  }

  char* memory_;
  Weights* weights_;
  float* tops_;
  const Scores& scores_;
};

}  // namespace heddle::portable
