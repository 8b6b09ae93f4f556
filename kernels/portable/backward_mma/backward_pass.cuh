// One pass of the portable backward: a tile of rows, whose gradients stay in registers, against the steps of its runs.
// A pass of keys gives dk and dv, a pass of queries dq; no CTA adds to what another one has. Written against the
// forward's fragments (fragments/README.md), once for the products of q and k and once for those of v and dO.
//
// A step: its q (or k) have arrived, ask for its dO (or v); S; these have arrived, ask for the next q; dP; mods, P and
// dS; dv += P^T dO; dk += dS^T q. A step has two barriers. After each, the arrived block is there for all waves, and
// all waves have read the block that the next one overwrites. With one buffer of q a third barrier ends the step.
//
// Where a tensor of batch 1 serves all sequences (kConfig.all_sequences), a CTA walks a tile of each of them, in their
// order, and its gradients are the sums.
//
// Where a gradient has more columns than a thread has registers, CTAs share them (kConfig.slices): each computes S and
// dP over all columns, and adds up and stores its own. The first one sums the reads.
#pragma once

#include "portable/backward_mma/backward_walk.cuh"
#include "portable/backward_mma/gradient_terms.cuh"
#include "portable/backward_mma/read_sums.cuh"
#include "portable/rows/descale_of.cuh"
#include "portable/rows/row_output.cuh"
#include "shared/tile_walk.h"

namespace heddle::portable {

/// `Qk`, `Dv`: the architecture's fragments for scores_side() and values_side(). `Mods`: the generated text's Mask,
/// Offset, Score, Derivative and Weight. `Reads`: of captures and params whose gradients the pass sums.
template <auto kConfig, class Qk, class Dv, class Mods, class... Reads>
class Backward {
 public:
  using Real = typename Qk::Real;

  __device__ __forceinline__ Backward(const shared::BackwardMmaParams& params, char* memory)
      : params_(params), memory_(memory) {}

  __device__ __forceinline__ void run(int cta) {
    slice_ = cta % kConfig.slices;
    cta /= kConfig.slices;
    if (kSliced && ReadGradients::kAny && slice_ > 0 && params_.d_qk.data == nullptr) return;
    const shared::BackwardItem& item = params_.items[cta / kConfig.parts() * (kAll ? params_.sequences : 1)];
    const BackwardTile<kConfig> tile(params_, item, cta % kConfig.parts());
    row_wave_ = Qk::wave() % kConfig.row_waves;
    QkOut d_qk;
    DvOut d_v;
    d_qk.clear();
    d_v.clear();
    if constexpr (kAll) {
      walk_all(&item, cta % kConfig.parts(), d_qk, d_v);
    } else {
      walk(tile, item, d_qk, d_v);
    }
    if constexpr (kFinds) {
      reads_.finish(params_);
    } else if constexpr (kConfig.d_qk) {
      if (ReadGradients::kAny && params_.d_qk.data == nullptr) return;
      const Real scale = shared::scales_of<Real>(params_).scale * factor_of_scores(tile);
      store<kConfig.d_qk_type, kConfig.qk_dim, Qk>(params_.d_qk, tile, scale, d_qk.o);
    }
    if constexpr (kConfig.d_v) {
      store<kConfig.d_v_type, kConfig.v_dim, Dv>(params_.d_v, tile, factor_of_values(tile), d_v.o);
    }
  }

 private:
  using Elements = BackwardElements<kConfig, Qk, Mods>;
  using ReadGradients = ReadSums<kConfig, Qk, Reads...>;
  using Source = RowSource<shared::bytes_of(kConfig.storage)>;
  static constexpr int kFragments = kConfig.row_fragments, kRows = Elements::kRows, kOwnRows = Qk::kOwnRows;
  static constexpr int kStepFragments = kConfig.step / Qk::kKeys;
  static constexpr bool kSoftmax = Elements::kSoftmax, kRest = kConfig.lse_rest;
  static constexpr shared::BackwardMmaMemory kMemory = shared::backward_mma_memory(kConfig);
  static_assert(kConfig.step % Qk::kKeys == 0 && (!kConfig.d_v || kConfig.of_keys) && (kConfig.d_qk || kConfig.d_v));
  static_assert(shared::kBackwardBlock % kConfig.step == 0);
  static constexpr bool kSliced = kConfig.slices > 1, kAll = kConfig.all_sequences;
  static constexpr bool kFinds = kConfig.finds_parts();
  static_assert(!kSliced || !(kConfig.d_qk && kConfig.d_v));
  using Scores = typename Qk::Scores[kFragments][kStepFragments];

  /// The sums of a gradient; none where the pass does not compute it.
  template <class F, bool kThere, int kColumns>
  struct Sums {
    typename F::Out o[kFragments][kColumns / F::kOuts];
    __device__ __forceinline__ void clear() {
#pragma unroll
      for (int f = 0; f < kFragments; ++f) {
#pragma unroll
        for (int d = 0; d < kColumns / F::kOuts; ++d) F::clear(o[f][d]);
      }
    }
  };
  template <class F, int kColumns>
  struct Sums<F, false, kColumns> {
    __device__ __forceinline__ void clear() {}
  };
  using QkOut = Sums<Qk, kConfig.d_qk && !kFinds, shared::scores_side(kConfig).v_columns()>;
  using DvOut = Sums<Dv, kConfig.d_v, shared::values_side(kConfig).v_columns()>;

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

  /// The tile of each sequence, of items that stand beside each other.
  __device__ __forceinline__ void walk_all(const shared::BackwardItem* items, int part, QkOut& d_qk, DvOut& d_v) {
#pragma unroll 1
    for (int i = 0; i < params_.sequences; ++i) {
      if (i > 0) Qk::barrier();  // all waves have read the blocks of the sequence before
      head_ = -1;
      walk(BackwardTile<kConfig>(params_, items[i], part), items[i], d_qk, d_v);
    }
  }

  __device__ __forceinline__ void walk(const BackwardTile<kConfig>& tile, const shared::BackwardItem& item, QkOut& d_qk,
                                       DvOut& d_v) {
    constexpr bool kEarly = !kConfig.d_qk || kConfig.stages > 1;  // the next q have a place while these are read
    BackwardWalk<kConfig> steps(params_.runs, item, tile.step_length);
    if (!steps.any() || tile.first >= tile.length) return;
    typename Qk::Stream scores(memory_ + kMemory.scores);
    typename Dv::Stream values(memory_ + kMemory.values);
    const auto ask = [&](auto& stream, int tensor) {
      const int head = tile.head_of_steps(steps.head(), params_.group);
      stream.ask_keys(Source(params_.steps[tensor], tile.batch, head, tile.step_begin), steps.first(),
                      tile.step_length);
    };
    ask(scores, 0);
    typename Qk::Queries of_scores[kFragments];
    typename Dv::Queries of_values[kFragments];
    scores.load_queries(of_scores, row_addresses(tile, params_.rows[0]));
    if constexpr (kConfig.d_qk) values.load_queries(of_values, row_addresses(tile, params_.rows[1]));
    begin_rows(tile);
    if constexpr (ReadGradients::kAny) reads_.clear();
    Scores s, d_p;
    for (bool more = true; more;) {
      const int first = steps.first(), head = steps.head(), flags = steps.flags() >> unit_of_wave();
      const bool attends = (flags & shared::kStepAttends) != 0;
      scores.keys_arrive();
      ask(values, 1);
      const StepNumbers numbers = read_numbers(tile, head, first);
      if (attends) Qk::multiply_keys(s, of_scores, scores, 0);
      leave_numbers(numbers);
      steps.next(tile.step_length);
      more = steps.any();
      values.keys_arrive();
      if (kEarly && more) ask(scores, 0);
      if (attends) {
        if constexpr (kConfig.d_qk) Dv::multiply_keys(d_p, of_values, values, 0);
        differentiate(tile, head, first, flags, s, d_p);
        if constexpr (kConfig.d_v) add_columns<Dv>(d_v.o, s, values);
        if constexpr (kConfig.d_qk && !kFinds) add_columns<Qk>(d_qk.o, d_p, scores);
      }
      if (!kEarly && more) {
        Qk::barrier();
        ask(scores, 0);
      }
    }
    scores.end();
    values.end();
    flush_reads(tile);
  }

  /// The columns of the CTA's slice: o += x step.
  template <class F, int kColumns>
  __device__ __forceinline__ void add_columns(typename F::Out (&o)[kFragments][kColumns], const Scores& x,
                                              const typename F::Stream& step) const {
    if constexpr (kSliced) {
      typename F::Stream slice = step;
      slice.skip_columns(slice_ * kColumns * F::kOuts);
      F::add_values(o, x, slice, 0);
    } else {
      F::add_values(o, x, step, 0);
    }
  }

  /// Sums of reads of the head whose mods have begun.
  __device__ __forceinline__ void flush_reads(const BackwardTile<kConfig>& tile) {
    if constexpr (ReadGradients::kAny) {
      if (head_ < 0) return;
      reads_.flush(params_, [&](int i) -> ElementIndices {
        const int row = tile.index_of_row(tile.first + row_of(i));
        return {tile.batch, head_, kConfig.of_keys ? 0 : row, kConfig.of_keys ? row : 0};
      });
    }
  }

  /// The bits of the wave's rows in the flags of a list, which are of 64 rows.
  __device__ __forceinline__ int unit_of_wave() const {
    return row_wave_ * kConfig.wave_rows() / shared::kBackwardBlock;
  }
  /// Where the thread's rows are; null: past the end.
  __device__ __forceinline__ auto row_addresses(const BackwardTile<kConfig>& tile,
                                                const shared::RowsOfTensor& tensor) const {
    return [this, &tile, source = Source(tensor, tile.batch, tile.head, tile.begin)](int i) -> const char* {
      const int row = tile.first + row_of(i);
      return row < tile.length ? source.row(row) : nullptr;
    };
  }

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
    elements_.begin(params_.mod, tile.batch, head, [&](int i) { return tile.index_of_row(tile.first + row_of(i)); });
    head_ = head;
  }
  __device__ __forceinline__ const Real* numbers_of(const BackwardTile<kConfig>& tile, int head, int query) const {
    const long long block = tile.first_block + query / shared::kBlockRows;
    return static_cast<const Real*>(params_.numbers) +
           (block * params_.q_heads + head) * shared::portable_numbers(kRest) + query % shared::kBlockRows;
  }

  /// Where steps are queries: their numbers come to shared memory, by way of registers beside the product.
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
    const bool rows_end = kAll && tile.first + kConfig.rows() > tile.length;
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
#pragma unroll
    for (int n = 0; n < kStepFragments; ++n) {
      if constexpr (kNumbers) Qk::fork();  // numbers of later columns are to be read later: registers
#pragma unroll
      for (int c = 0; c < Qk::kOwnKeys; ++c) {
        const int own = n * Qk::kKeys + Qk::own_key(c), index = tile.index_of_step(first + own);
        QueryNumbers<Real> of_step = {0, 0, 0};
        if constexpr (kNumbers) of_step = {step_numbers()[own], step_numbers()[kConfig.step + own], 0};
        if constexpr (kNumbers && kRest) of_step.low = step_numbers()[2 * kConfig.step + own];
        elements_.template column<kCut>(
            params_, first + own < tile.step_length, partial, index,
            [&](int i) -> Real& { return s[i / kOwnRows][n].x[i % kOwnRows][c]; },
            [&](int i) -> Real& { return d_p[i / kOwnRows][n].x[i % kOwnRows][c]; },
            [&](int i) -> ElementIndices {
              const int row = tile.index_of_row(tile.first + row_of(i));
              return {tile.batch, head, kConfig.of_keys ? index : row, kConfig.of_keys ? row : index};
            },
            [&](int i) { return kConfig.of_keys ? of_step : rows_[kConfig.of_keys ? 0 : i]; },
            [&](int i) { return tile.first + row_of(i) < tile.length; }, !kSliced || slice_ == 0, reads_, factors);
      }
    }
  }

  /// The tile's rows of a gradient; zeros past the sequence's end.
  template <StorageType kAsked, int kDim, class F, int kColumns>
  __device__ __forceinline__ void store(const shared::RowOutput& out, const BackwardTile<kConfig>& tile, Real factor,
                                        typename F::Out (&o)[kFragments][kColumns]) const {
    constexpr StorageType kType = output_type(kAsked, kConfig.storage);
    using Bits = typename OutputElement<kType, F>::Bits;
    const int stored = params_.padded_rows > 0 ? params_.padded_rows : tile.length;
    const int begin = kSliced ? slice_ * kColumns * F::kOuts : 0;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int row = tile.first + row_of(i);
      if (row >= stored) continue;
      Bits* to = static_cast<Bits*>(out.data) + tile.batch * out.stride[0] + tile.head * out.stride[1] +
                 (tile.begin + row) * out.stride[2] + begin;
#pragma unroll
      for (int d = 0; d < kColumns; ++d) {
#pragma unroll
        for (int c = 0; c < F::kOwnOuts; ++c) {
          Real& x = o[i / kOwnRows][d].x[i % kOwnRows][c];
          x = kAll || row < tile.length ? x : 0;
        }
      }
      store_columns<kType, kDim, kConfig.gradient_bytes, F>(to, factor, o[i / kOwnRows], i % kOwnRows, begin);
    }
  }

  const shared::BackwardMmaParams& params_;
  char* memory_;
  int row_wave_ = 0, head_ = -1, slice_ = 0;
  QueryNumbers<Real> rows_[kConfig.of_keys ? 1 : kRows];
  Elements elements_;
  ReadGradients reads_;
};

}  // namespace heddle::portable
