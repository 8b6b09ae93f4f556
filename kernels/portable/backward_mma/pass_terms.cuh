// The elements of a pass: S and dP of a step's pairs become P and dS, by the mods and by the numbers of queries, which
// stand in registers where these are the tile's rows, and in shared memory where they are the steps'.
#pragma once

#include "portable/backward_mma/backward_walk.cuh"
#include "portable/backward_mma/gradient_terms.cuh"
#include "portable/backward_mma/read_sums.cuh"
#include "portable/rows/descale_of.cuh"
#include "portable/rows/placed_rows.cuh"
#include "shared/tile_walk.h"

namespace heddle::portable {

/// `Qk`: the architecture's fragments for scores_side(). `Mods`: the generated text's Mask, Offset, Score, Derivative,
/// Weight, Queryplace and Keyplace. `Reads`: of captures and params whose gradients the pass sums.
template <auto kConfig, class Qk, class Mods, class... Reads>
class PassTerms : RowShift<kConfig.of_keys ? kConfig.placed_keys : kConfig.placed_queries> {
 public:
  using Real = typename Qk::Real;
  using Elements = BackwardElements<kConfig, Qk, Mods>;
  using ReadGradients = ReadSums<kConfig, Qk, Reads...>;
  static constexpr int kFragments = kConfig.row_fragments, kRows = Elements::kRows, kOwnRows = Qk::kOwnRows;
  static constexpr int kStepFragments = kConfig.wave_step() / Qk::kKeys;
  static constexpr bool kSliced = kConfig.slices > 1, kAll = kConfig.all_sequences, kShares = kConfig.shares_terms();
  static constexpr bool kSoftmax = Elements::kSoftmax, kRest = kConfig.lse_rest;
  static constexpr shared::BackwardMmaMemory kMemory = shared::backward_mma_memory(kConfig);
  static_assert(kConfig.wave_step() % Qk::kKeys == 0 && shared::kBackwardBlock % kConfig.step == 0);
  // A wave's rows lie in one granule, and so does a step.
  static_assert(shared::kBackwardBlock % kConfig.wave_rows() == 0);
  using Scores = typename Qk::Scores[kFragments][kStepFragments];

 protected:
  __device__ __forceinline__ PassTerms(const shared::BackwardMmaParams& params, char* memory)
      : params_(params), memory_(memory), row_wave_(Qk::wave() % kConfig.row_waves) {
    if constexpr (kShares) column_wave_ = Qk::wave() / kConfig.row_waves;
    step_part_ = column_wave_ * kConfig.wave_step();
  }

  // Tensors of 8 bits: the factors of a tile's finished gradients, and of an element's terms. A pass of keys meets
  // several query heads; one of all sequences has factors of each of these.
  __device__ __forceinline__ Real factor_of_scores(const BackwardTile<kConfig>& tile) const {
    if constexpr (!kConfig.descaled || kAll) return 1;
    const float keys = descale_of(params_.descales.k, tile.batch, kv_head_of(tile));
    return kConfig.of_keys ? keys : keys * descale_of(params_.descales.q, tile.batch, tile.head);
  }
  __device__ __forceinline__ Real factor_of_values(const BackwardTile<kConfig>& tile) const {
    if constexpr (!kConfig.descaled || kAll) return 1;
    return descale_of(params_.descales.v, tile.batch, kv_head_of(tile));
  }
  __device__ __forceinline__ ElementFactors factors_of(const BackwardTile<kConfig>& tile, int q_head) const {
    if constexpr (!kConfig.descaled) return {1, 1, 1, 1};
    const float queries = descale_of(params_.descales.q, tile.batch, q_head),
                keys = descale_of(params_.descales.k, tile.batch, kv_head_of(tile)),
                values = descale_of(params_.descales.v, tile.batch, kv_head_of(tile));
    return {queries * keys, values, kAll ? queries * keys : kConfig.of_keys ? queries : 1, kAll ? values : 1};
  }
  __device__ __forceinline__ int kv_head_of(const BackwardTile<kConfig>& tile) const {
    return kConfig.of_keys ? tile.head : tile.head / params_.group;
  }

  /// The row of the tile that is this thread's row i.
  __device__ __forceinline__ int row_of(int i) const {
    return row_wave_ * kConfig.wave_rows() + i / kOwnRows * kConfig.shape().rows + Qk::own_row(i % kOwnRows);
  }

  /// The bits of the wave's rows in the flags of a list, which are of 64 rows.
  __device__ __forceinline__ int unit_of_wave() const {
    return row_wave_ * kConfig.wave_rows() / shared::kBackwardBlock;
  }

  /// Sums of reads of the head whose mods have begun.
  __device__ __forceinline__ void flush_reads(const BackwardTile<kConfig>& tile) {
    if constexpr (ReadGradients::kAny) {
      if (head_ < 0) return;
      reads_.flush(params_, [&](int i) -> ElementIndices {
        const int row = this->of_index(tile.index_of_row(tile.first + row_of(i)));
        return {tile.batch, head_, kConfig.of_keys ? 0 : row, kConfig.of_keys ? row : 0};
      });
    }
  }

  /// Before the steps of another sequence.
  __device__ __forceinline__ void begin_sequence() { head_ = -1; }
  /// Begins the mods of rows that are queries.
  __device__ __forceinline__ void begin_rows(const BackwardTile<kConfig>& tile) {
    if constexpr (!kConfig.of_keys) {
      begin_mods(tile, tile.head);
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        const int row = tile.first + row_of(i);
        rows_[i] = {kRest ? Real(0) : Qk::infinity(), 0, Qk::infinity()};
        if (kSoftmax && row < tile.length) {
          const Real* from = numbers_of(tile, tile.head, row);
          rows_[i] = {from[0], from[shared::kBlockRows], kRest ? from[2 * shared::kBlockRows] : Real(0)};
        }
      }
    }
  }
  __device__ __forceinline__ void begin_mods(const BackwardTile<kConfig>& tile, int head) {
    if constexpr (kConfig.of_keys ? kConfig.placed_keys : kConfig.placed_queries) {
      this->shift = shift_of<kConfig.of_keys>(tile, head, tile.first + row_wave_ * kConfig.wave_rows());
    }
    elements_.begin(params_.mod, tile.batch, head,
                    [&](int i) { return this->of_index(tile.index_of_row(tile.first + row_of(i))); });
    head_ = head;
  }
  /// The number of a query's block and head.
  __device__ __forceinline__ long long number_of(const BackwardTile<kConfig>& tile, int head, int query) const {
    const long long block = tile.first_block + query / shared::kBlockRows;
    return block * params_.q_heads + head;
  }
  __device__ __forceinline__ const Real* numbers_of(const BackwardTile<kConfig>& tile, int head, int query) const {
    return static_cast<const Real*>(params_.numbers) + number_of(tile, head, query) * shared::portable_numbers(kRest) +
           query % shared::kBlockRows;
  }

  /// If steps are queries, their numbers come to shared memory by way of registers, beside the product.
  static constexpr bool kNumbers = kConfig.of_keys && kSoftmax;
  static constexpr int kStepNumbers = shared::row_numbers(kRest) * kConfig.step;
  static constexpr int kEach = (kStepNumbers + kConfig.threads() - 1) / kConfig.threads();
  struct StepNumbers {
    Real x[kNumbers ? kEach : 1];
  };
  __device__ __forceinline__ StepNumbers read_numbers(const BackwardTile<kConfig>& tile, int head, int first) const {
    StepNumbers numbers{};
    if constexpr (kNumbers) {
      const Real* from = numbers_of(tile, head, first);
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        const int own = i * kConfig.threads() + Qk::thread();
        if (own < kStepNumbers) {
          numbers.x[i] = from[own / kConfig.step * shared::kBlockRows + own % kConfig.step];
        }
      }
    }
    return numbers;
  }
  __device__ __forceinline__ void leave_numbers(const StepNumbers& numbers) const {
    if constexpr (kNumbers) {
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        const int own = i * kConfig.threads() + Qk::thread();
        if (own < kStepNumbers) step_numbers()[own] = numbers.x[i];
      }
    }
  }
  __device__ __forceinline__ Real* step_numbers() const { return reinterpret_cast<Real*>(memory_ + kMemory.numbers); }

  /// S becomes P w, and dP becomes dS.
  __device__ __forceinline__ void differentiate(const BackwardTile<kConfig>& tile, int head, int first, int flags,
                                                Scores& s, Scores& d_p) {
    if constexpr (kConfig.of_keys) {
      if (head != head_) {
        flush_reads(tile);
        begin_mods(tile, head);
      }
    }
    const bool partial = kConfig.masked && (flags & shared::kStepPartial) != 0;
    const bool rows_end = Elements::kCutsRows && tile.first + kConfig.rows() > tile.length;
    if (partial || rows_end || first + kConfig.step > tile.step_length) {
      Qk::fork();
      visit<true>(tile, head, first, partial, s, d_p);
    } else {
      visit<false>(tile, head, first, false, s, d_p);
    }
  }
  template <bool kCut>
  __device__ __forceinline__ void visit(const BackwardTile<kConfig>& tile, int head, int first, bool partial, Scores& s,
                                        Scores& d_p) {
    const ElementFactors factors = factors_of(tile, head);
    const int step_shift = shift_of<!kConfig.of_keys>(tile, head, first);
#pragma unroll
    for (int n = 0; n < kStepFragments; ++n) {
      if constexpr (kNumbers) Qk::fork();  // numbers of later columns are to be read later: registers
#pragma unroll
      for (int c = 0; c < Qk::kOwnKeys; ++c) {
        const int own = step_part_ + n * Qk::kKeys + Qk::own_key(c),
                  index = tile.index_of_step(first + own) + step_shift;
        QueryNumbers<Real> of_step = {0, 0, 0};
        if constexpr (kNumbers) of_step = {step_numbers()[own], step_numbers()[kConfig.step + own], 0};
        if constexpr (kNumbers && kRest) of_step.low = step_numbers()[2 * kConfig.step + own];
        elements_.template column<kCut>(
            params_, first + own < tile.step_length, partial, index,
            [&](int i) -> Real& { return s[i / kOwnRows][n].x[i % kOwnRows][c]; },
            [&](int i) -> Real& { return d_p[i / kOwnRows][n].x[i % kOwnRows][c]; },
            [&](int i) -> ElementIndices {
              const int row = this->of_index(tile.index_of_row(tile.first + row_of(i)));
              return {tile.batch, head, kConfig.of_keys ? index : row, kConfig.of_keys ? row : index};
            },
            [&](int i) { return kConfig.of_keys ? of_step : rows_[kConfig.of_keys ? 0 : i]; },
            [&](int i) { return tile.first + row_of(i) < tile.length; }, !kSliced || slice_ == 0, reads_, factors);
      }
    }
  }

  const shared::BackwardMmaParams& params_;
  char* memory_;
  int row_wave_, slice_ = 0;
  int column_wave_ = 0, step_part_ = 0;  // shares_terms(): which columns the wave has, and from where on queries
  ReadGradients reads_;

 private:
  /// Positions minus indices in the granule of `row`.
  template <bool kOfKeys>
  __device__ __forceinline__ int shift_of(const BackwardTile<kConfig>& tile, int head, int row) const {
    if constexpr (kOfKeys && kConfig.placed_keys) {
      return shift_of_key<typename Mods::Keyplace>(params_.mod, tile.batch, head, row);
    } else if constexpr (!kOfKeys && kConfig.placed_queries) {
      return shift_of_query<typename Mods::Queryplace>(params_.mod, tile.batch, head, row);
    }
    return 0;
  }

  int head_ = -1;  // whose mods have begun
  QueryNumbers<Real> rows_[kConfig.of_keys ? 1 : kRows];
  Elements elements_;
};

}  // namespace heddle::portable
