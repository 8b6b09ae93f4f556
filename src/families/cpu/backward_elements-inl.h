// A step of the backward between its products, element by element: mods and their derivatives, then p w, dS
// and the gradients of reads. The f32 kernel and AMX's share it.

// A guard that toggles, as Highway's per-target headers have.
#if defined(HEDDLE_CPU_BACKWARD_ELEMENTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEDDLE_CPU_BACKWARD_ELEMENTS_INL_H_
#undef HEDDLE_CPU_BACKWARD_ELEMENTS_INL_H_
#else
#define HEDDLE_CPU_BACKWARD_ELEMENTS_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>
#include <limits>

#include "families/cpu/cpu_backward_step.h"
#include "tile_evaluator/tile_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace heddle::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

namespace detail {

using plan::kScoreStride;

/// The columns of a step that are computed: whole groups of column_unit around [begin, end).
struct StepColumns {
  std::int64_t first, count;
};
template <class T>
StepColumns ColumnsOf(const BackwardStep<T>& step) {
  const std::int64_t first = step.begin / step.column_unit * step.column_unit;
  return {first, plan::round_up(step.end - first, step.column_unit)};
}

/// s becomes t, with -inf beside the run; the derivatives and weights are computed from s.
template <class T>
void ApplyStepMods(const BackwardStep<T>& step, const StepBuffers<T>& buffers) {
  const StepColumns columns = ColumnsOf(step);
  TilePosition at = step.at;
  at.kv_first += columns.first;
  at.columns = static_cast<int>(step.end - columns.first);
  if (buffers.score_copy != nullptr) {
    for (std::int64_t r = 0; r < step.at.rows; ++r) {
      std::copy_n(buffers.scores + r * kScoreStride, columns.count, buffers.score_copy + r * kScoreStride);
    }
  }
  const auto run = [&](const TileMod& mod, T* out) {
    mod.program->run(at, buffers.scores, out, kScoreStride, *mod.scratch);
  };
  for (const StepRead<T>& read : step.reads) {
    if (read.slope) run(read.slope, read.gradients);
  }
  if (step.slope) run(step.slope, buffers.slopes);
  if (step.weight) run(step.weight, buffers.weights);
  if (step.mod) run(step.mod, buffers.scores);
  const std::int64_t before = step.begin - columns.first, after = step.end - columns.first;
  if (before == 0 && after == columns.count) return;
  for (std::int64_t r = 0; r < step.at.rows; ++r) {
    T* row = buffers.scores + r * kScoreStride;
    std::fill(row, row + before, -std::numeric_limits<T>::infinity());
    std::fill(row + after, row + columns.count, -std::numeric_limits<T>::infinity());
  }
}

template <class T>
void FindStepAttending(const BackwardStep<T>& step, const StepBuffers<T>& buffers) {
  const std::int64_t columns = ColumnsOf(step).count;
  for (std::int64_t r = 0; r < step.at.rows; ++r) {
    for (std::int64_t c = 0; c < columns; ++c) {
      const std::int64_t element = r * kScoreStride + c;
      buffers.attending[element] = buffers.scores[element] != -std::numeric_limits<T>::infinity() ? 1 : 0;
    }
  }
}

/// The numbers of a row that its weights are normalised by.
template <bool kRest, class V>
struct Normalization {
  V lse, rest;
  /// ln p. t - lse comes first: it is exact where t and lse are close to each other.
  HWY_INLINE V Exponent(V t) const {
    const V difference = hn::Sub(t, lse);
    if constexpr (kRest) return hn::Sub(difference, rest);
    return difference;
  }
};

/// p, and its derivative by t without the factor (w dP - delta), which is p itself with softmax.
template <Normalizer kNormalizer, bool kRest, class D, class V>
HWY_INLINE V WeightOf(D d, V t, const Normalization<kRest, V>& row, V& derivative) {
  using T = hn::TFromD<D>;
  if constexpr (kNormalizer == Normalizer::softmax) {
    const V p = Exp2NoSubnormals(d, hn::Mul(row.Exponent(t), hn::Set(d, static_cast<T>(1.4426950408889634))));
    derivative = p;
    return p;
  } else if constexpr (kNormalizer == Normalizer::sigmoid) {
    const V p = Sigmoid(d, t);
    derivative = hn::Mul(p, Sigmoid(d, hn::Neg(t)));
    return p;
  } else {
    derivative = hn::Set(d, T(1));
    return t;
  }
}

/// The numbers of row r that its elements share.
template <bool kRest, class V>
struct RowNumbers {
  Normalization<kRest, V> normalization;
  V delta;
};
template <Normalizer kNormalizer, bool kRest, class D, class T>
HWY_INLINE RowNumbers<kRest, hn::Vec<D>> NumbersOf(D d, const BackwardStep<T>& step, std::int64_t r) {
  const bool softmax = kNormalizer == Normalizer::softmax;
  return {{hn::Set(d, softmax ? step.queries.lse[r] : T(0)), hn::Set(d, kRest ? step.queries.lse_rest[r] : T(0))},
          hn::Set(d, softmax ? step.queries.delta[r] : T(0))};
}

template <class V>
struct Differentiated {
  V weighted, d_s;  // p w and dS
};

/// A vector of elements, at element i of the buffers: gradients of reads are stored. All results are 0 where t is -inf.
/// kMods: there may be a weight mod, a slope or reads. Without them a row takes half of the time.
template <Normalizer kNormalizer, bool kMods, bool kRest, class D, class T, class V>
HWY_INLINE Differentiated<V> DifferentiateVector(D d, const BackwardStep<T>& step, const StepBuffers<T>& buffers,
                                                 const RowNumbers<kRest, V>& row, std::int64_t i, V t, V d_p) {
  const auto masked = hn::Eq(t, hn::Set(d, -std::numeric_limits<T>::infinity()));
  auto derivative = t;
  const auto p = WeightOf<kNormalizer>(d, t, row.normalization, derivative);
  auto weighted = p, w_d_p = d_p;
  if (kMods && step.weight) {
    const auto weight = hn::Load(d, buffers.weights + i);
    weighted = hn::Mul(p, weight);
    w_d_p = hn::Mul(d_p, weight);
  }
  const auto d_t = hn::Mul(derivative, kNormalizer == Normalizer::softmax ? hn::Sub(w_d_p, row.delta) : w_d_p);
  if constexpr (kMods) {
    for (const StepRead<T>& read : step.reads) {
      auto gradient = read.of_weight ? hn::Mul(p, d_p) : d_t;
      if (read.slope) gradient = hn::Mul(hn::Load(d, read.gradients + i), gradient);
      hn::Store(hn::IfThenZeroElse(masked, gradient), d, read.gradients + i);
    }
  }
  auto d_s = hn::Mul(d_t, hn::Set(d, step.gradient_factor));
  if (kMods && step.slope) d_s = hn::Mul(d_s, hn::Load(d, buffers.slopes + i));
  return {hn::IfThenZeroElse(masked, hn::Mul(weighted, hn::Set(d, step.value_factor))),
          hn::IfThenZeroElse(masked, d_s)};
}

/// scores: t becomes p w; d_p: dP becomes dS; gradients of reads: slopes become gradients.
template <Normalizer kNormalizer, bool kRest, class T>
void DifferentiateRow(const BackwardStep<T>& step, const StepBuffers<T>& buffers, std::int64_t r) {
  const hn::ScalableTag<T> d;
  const std::int64_t columns = ColumnsOf(step).count, first = r * kScoreStride;
  const auto row = NumbersOf<kNormalizer, kRest>(d, step, r);
  for (std::int64_t i = first; i < first + columns; i += static_cast<std::int64_t>(hn::Lanes(d))) {
    const auto element = DifferentiateVector<kNormalizer, true>(
        d, step, buffers, row, i, hn::Load(d, buffers.scores + i), hn::Load(d, buffers.d_p + i));
    hn::Store(element.weighted, d, buffers.scores + i);
    hn::Store(element.d_s, d, buffers.d_p + i);
  }
}

template <class T>
void Differentiate(const BackwardStep<T>& step, const StepBuffers<T>& buffers) {
  for (std::int64_t r = 0; r < step.at.rows; ++r) {
    switch (step.normalizer) {
      case Normalizer::softmax:
        if (step.queries.lse_rest != nullptr) {
          DifferentiateRow<Normalizer::softmax, true>(step, buffers, r);
        } else {
          DifferentiateRow<Normalizer::softmax, false>(step, buffers, r);
        }
        break;
      case Normalizer::sigmoid:
        DifferentiateRow<Normalizer::sigmoid, false>(step, buffers, r);
        break;
      case Normalizer::none:
        DifferentiateRow<Normalizer::none, false>(step, buffers, r);
        break;
    }
  }
}

}  // namespace detail

}  // namespace heddle::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // the toggling guard
