// One pass of the portable backward: a tile of rows, whose gradients stay in registers, against the steps of its runs.
// A pass of keys gives dk and dv, a pass of queries dq; no CTA adds to what another one has. Or a pass of keys gives
// all three (kConfig.adds_d_q), and CTAs add to sums of dq. Written against the forward's fragments
// (fragments/README.md), once for the products of q and k and once for those of v and dO.
//
// A step: its q (or k) have arrived, ask for its dO (or v); S; these have arrived, ask for the next q; dP; mods, P and
// dS; dv += P^T dO; dk += dS^T q. A step has two barriers. After each, the arrived block is there for all waves, and
// all waves have read the block that the next one overwrites. With one buffer of q a third barrier ends the step. If
// the pass adds dq, q and dO arrive together, and dS is left between two barriers (walk_adding()).
//
// If a tensor of batch 1 serves all sequences (kConfig.all_sequences), a CTA walks a tile of each of them, in their
// order, and its gradients are the sums.
//
// If a gradient has more columns than a thread has registers, CTAs share them (kConfig.slices): each computes S and dP
// over all columns, and adds up and stores its own. The first one sums the reads.
#pragma once

#include "portable/backward_mma/added_queries.cuh"
#include "portable/backward_mma/pass_terms.cuh"
#include "portable/backward_mma/shared_terms.cuh"
#include "portable/rows/row_output.cuh"

namespace heddle::portable {

/// `Qk`, `Dv`, `Dq`: the architecture's fragments for scores_side(), values_side() and queries_side(), or NoQueries.
template <auto kConfig, class Qk, class Dv, class Dq, class Mods, class... Reads>
class Backward : public PassTerms<kConfig, Qk, Mods, Reads...> {
 public:
  using Base = PassTerms<kConfig, Qk, Mods, Reads...>;
  using typename Base::Real;

  /// `memory`: of the CTA, by backward_mma_memory().
  __device__ __forceinline__ Backward(const shared::BackwardMmaParams& params, char* memory) : Base(params, memory) {}

  __device__ __forceinline__ void run(int cta) {
    slice_ = cta % kConfig.slices;
    cta /= kConfig.slices;
    if (kSliced && ReadGradients::kAny && slice_ > 0 && params_.d_qk.data == nullptr) return;
    const shared::BackwardItem& item = params_.items[cta / kConfig.parts() * (kAll ? params_.sequences : 1)];
    const BackwardTile<kConfig> tile(params_, item, cta % kConfig.parts());
    QkOut d_qk;
    DvOut d_v;
    d_qk.clear();
    d_v.clear();
    if constexpr (kAdds) {
      walk_adding(tile, item, d_qk, d_v);
    } else if constexpr (kAll) {
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
  using Base::begin_rows, Base::differentiate, Base::factor_of_scores, Base::factor_of_values, Base::flush_reads,
      Base::leave_numbers, Base::number_of, Base::read_numbers, Base::row_of, Base::unit_of_wave;
  using Base::column_wave_, Base::memory_, Base::params_, Base::reads_, Base::row_wave_, Base::slice_, Base::step_part_;
  using Base::kAll, Base::kFragments, Base::kMemory, Base::kOwnRows, Base::kRows, Base::kShares, Base::kSliced;
  using typename Base::ReadGradients, typename Base::Scores, typename Base::StepNumbers;
  using Queries = AddedQueries<kConfig, Dq>;
  using Terms = SharedTerms<kConfig>;
  using Source = RowSource<shared::bytes_of(kConfig.storage)>;
  static constexpr bool kFinds = kConfig.finds_parts(), kAdds = kConfig.adds_d_q, kAlone = kConfig.adds_alone();
  static_assert((!kConfig.d_v || kConfig.of_keys) && (kConfig.d_qk || kConfig.d_v));
  static_assert(!kSliced || !(kConfig.d_qk && kConfig.d_v));
  static_assert(!kAdds || (kConfig.d_qk && kConfig.d_v && !kAll && !kConfig.descaled));
  static_assert((kAdds && !kAlone) || !kShares);

  /// The sums of a gradient; none where the pass does not compute it.
  template <class F, bool kThere, int kColumns>
  struct Sums {
    static constexpr int kOwn = (kColumns / F::kOuts + kConfig.step_waves - 1) / kConfig.step_waves;
    typename F::Out o[kFragments][kOwn];
    __device__ __forceinline__ void clear() {
#pragma unroll
      for (int f = 0; f < kFragments; ++f) {
#pragma unroll
        for (int d = 0; d < kOwn; ++d) F::clear(o[f][d]);
      }
    }
  };
  template <class F, int kColumns>
  struct Sums<F, false, kColumns> {
    __device__ __forceinline__ void clear() {}
  };
  using QkOut = Sums<Qk, kConfig.d_qk && !kFinds, shared::scores_side(kConfig).v_columns()>;
  using DvOut = Sums<Dv, kConfig.d_v, shared::values_side(kConfig).v_columns()>;

  /// The tile of each sequence, of items that stand beside each other.
  __device__ __forceinline__ void walk_all(const shared::BackwardItem* items, int part, QkOut& d_qk, DvOut& d_v) {
#pragma unroll 1
    for (int i = 0; i < params_.sequences; ++i) {
      if (i > 0) Qk::barrier();  // all waves have read the blocks of the sequence before
      this->begin_sequence();
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

  /// The steps of a pass that adds dq. The next blocks are asked for as soon as those of this step have been read.
  __device__ __forceinline__ void walk_adding(const BackwardTile<kConfig>& tile, const shared::BackwardItem& item,
                                              QkOut& d_qk, DvOut& d_v) {
    constexpr bool kEarly = kConfig.stages > 1;
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
    ask(values, 1);
    typename Qk::Queries of_scores[kFragments];
    typename Dv::Queries of_values[kFragments];
    scores.load_queries(of_scores, row_addresses(tile, params_.rows[0]));
    values.load_queries(of_values, row_addresses(tile, params_.rows[1]));
    if constexpr (ReadGradients::kAny) reads_.clear();
    StepNumbers numbers = read_numbers(tile, steps.head(), steps.first());
    Scores s, d_p;
    for (bool more = true; more;) {
      const int first = steps.first(), head = steps.head(), flags = steps.flags() >> unit_of_wave();
      const bool attends = (flags & shared::kStepAttends) != 0;
      leave_numbers(numbers);
      scores.keys_arrive();
      steps.next(tile.step_length);
      more = steps.any();
      if (kEarly && more) ask(scores, 0);
      if (attends) {
        Qk::multiply_keys(s, of_scores, scores, step_part_);
        Dv::multiply_keys(d_p, of_values, values, step_part_);
        differentiate(tile, head, first, flags, s, d_p);
        if constexpr (!kAlone) leave_terms(s, d_p);
        if constexpr (!kShares) {
          add_columns<Dv>(d_v.o, s, values);
          add_columns<Qk>(d_qk.o, d_p, scores);
        }
        if constexpr (kAlone) Queries::leave_own(memory_, d_p, row_wave_);
      } else if constexpr (!kAlone) {
        leave_zeros();
      }
      Qk::barrier();
      if constexpr (kShares) {
        add_shared<Dv>(d_v.o, Terms(memory_).weights(), values);
        if constexpr (!kEarly) add_shared<Qk>(d_qk.o, Terms(memory_).slopes(), scores);
        Qk::barrier();
      }
      if (more) {
        if constexpr (!kEarly) ask(scores, 0);
        ask(values, 1);
        numbers = read_numbers(tile, steps.head(), steps.first());
      }
      if constexpr (kEarly && kShares) add_shared<Qk>(d_qk.o, Terms(memory_).slopes(), scores);
      float* const sums = Queries::sums_of(params_.d_q, number_of(tile, head, first), first);
      if constexpr (!kAlone) {
        Queries::add(memory_, sums);
      } else if (attends) {
        Queries::add_own(memory_, sums, d_p, row_wave_);
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
  /// The wave's terms of P and dS, for other waves.
  __device__ __forceinline__ void leave_terms(const Scores& p, const Scores& d_s) const {
    const Terms terms(memory_);
    const int key = row_wave_ * kConfig.wave_rows();
    if constexpr (kShares) terms.template leave<Qk>(terms.weights(), p, key, step_part_);
    terms.template leave<Qk>(terms.slopes(), d_s, key, step_part_);
  }
  /// Likewise, where its keys attend none of the step.
  __device__ __forceinline__ void leave_zeros() const {
    const Terms terms(memory_);
    const int key = row_wave_ * kConfig.wave_rows();
    if constexpr (kShares) terms.template leave_zeros<Qk>(terms.weights(), key, step_part_);
    terms.template leave_zeros<Qk>(terms.slopes(), key, step_part_);
  }
  /// The wave's columns, over the step's queries: o += x step, x those terms of the wave's keys.
  template <class F, int kColumns>
  __device__ __forceinline__ void add_shared(typename F::Out (&o)[kFragments][kColumns], const char* x,
                                             const typename F::Stream& step) const {
    F::template add_terms<false>(o, Terms::of_key(x, row_wave_ * kConfig.wave_rows()), kMemory.term_pitch, step,
                                 column_wave_ * kColumns);
  }

  /// Where the thread's rows are; null: past the end.
  __device__ __forceinline__ auto row_addresses(const BackwardTile<kConfig>& tile,
                                                const shared::RowsOfTensor& tensor) const {
    return [this, &tile, source = Source(tensor, tile.batch, tile.head, tile.begin)](int i) -> const char* {
      const int row = tile.first + row_of(i);
      return row < tile.length ? source.row(row) : nullptr;
    };
  }

  /// The tile's rows of a gradient; zeros past the sequence's end.
  template <StorageType kAsked, int kDim, class F, int kColumns>
  __device__ __forceinline__ void store(const shared::RowOutput& out, const BackwardTile<kConfig>& tile, Real factor,
                                        typename F::Out (&o)[kFragments][kColumns]) const {
    constexpr StorageType kType = output_type(kAsked, kConfig.storage);
    using Bits = typename OutputElement<kType, F>::Bits;
    const int stored = params_.padded_rows > 0 ? params_.padded_rows : tile.length;
    const int begin = (kSliced ? slice_ : kShares ? column_wave_ : 0) * kColumns * F::kOuts;
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
};

}  // namespace heddle::portable
