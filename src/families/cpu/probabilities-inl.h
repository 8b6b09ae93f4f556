// From scores to probabilities, a chunk of keys at a time: the running maximum and sum of each row, and the other
// normalizers. scores [rows][plan::kChunk]; -inf marks what does not attend.

// A guard that toggles, as Highway's per-target headers have.
#if defined(HEDDLE_BACKEND_CPU_SOFTMAX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEDDLE_BACKEND_CPU_SOFTMAX_INL_H_
#undef HEDDLE_BACKEND_CPU_SOFTMAX_INL_H_
#else
#define HEDDLE_BACKEND_CPU_SOFTMAX_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>
#include <limits>

#include "families/cpu/target_data.h"
#include "tile_evaluator/tile_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace heddle::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// Partial sums that row_sums keeps of each row: the lanes of a 64-byte vector, whatever the target's own lanes.
template <class T>
inline constexpr std::int64_t kSumLanes = plan::kAlignment / static_cast<std::int64_t>(sizeof(T));

/// The chunk's part of a tile; `columns` is a multiple of 16. weights: null, or [rows][kChunk].
template <class T>
struct ScoreChunk {
  T* scores;
  const T* weights;
  std::int64_t rows, columns;
};

namespace detail {

template <class T>
inline constexpr T kMinusInfinity = -std::numeric_limits<T>::infinity();

template <class T>
T RowMaximum(const T* row, std::int64_t columns) {
  const hn::ScalableTag<T> d;
  const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(d));
  auto maximum = hn::Load(d, row);
  for (std::int64_t i = lanes; i < columns; i += lanes) maximum = hn::Max(maximum, hn::Load(d, row + i));
  return hn::GetLane(hn::MaxOfLanes(d, maximum));
}

/// The weight of what attends, 0 elsewhere: a weight counts only where its element does.
template <class D, class T>
HWY_INLINE hn::Vec<D> LoadWeight(D d, const T* weights, hn::Vec<D> score) {
  return hn::IfThenZeroElse(hn::Eq(score, hn::Set(d, kMinusInfinity<T>)), hn::Load(d, weights));
}

/// row = exp(row - maximum), times the weights; the sums are of the former alone.
template <bool kWeighted, class T>
void ExponentiateRow(T* row, const T* weights, std::int64_t columns, T maximum, T scale, T* sums) {
  const hn::ScalableTag<T> d;
  const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const auto offset = hn::Set(d, maximum);
  const auto log2e = hn::Set(d, static_cast<T>(1.4426950408889634));
  for (std::int64_t first = 0; first < kSumLanes<T>; first += lanes) {
    auto sum = hn::Mul(hn::Load(d, sums + first), hn::Set(d, scale));
    for (std::int64_t i = first; i < columns; i += kSumLanes<T>) {
      const auto score = hn::Load(d, row + i);
      const auto p = Exp2NoSubnormals(d, hn::Mul(hn::Sub(score, offset), log2e));
      sum = hn::Add(sum, p);
      if constexpr (kWeighted) {
        hn::Store(hn::Mul(p, LoadWeight(d, weights + i, score)), d, row + i);
      } else {
        hn::Store(p, d, row + i);
      }
    }
    hn::Store(sum, d, sums + first);
  }
}

}  // namespace detail

/// One chunk of the online softmax. maxima [rows]: the running maxima, -inf at first. scales [rows]: set to what the
/// rows' accumulators must be multiplied by. sums [rows][kSumLanes]: the running sums by lane, 0 at first. A row with a
/// NaN or +inf ends with a NaN sum; no other does. (A maximum may or may not see a NaN: the sum does.)
template <class T>
void SoftmaxChunk(const ScoreChunk<T>& chunk, T* maxima, T* scales, T* sums) {
  const hn::ScalableTag<T> d;
  const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const auto minus_infinity = hn::Set(d, detail::kMinusInfinity<T>);
  const auto log2e = hn::Set(d, static_cast<T>(1.4426950408889634));
  // Strips whose scores stay in L1 between the two passes. The rescaling factors of a strip are one vector.
  constexpr std::int64_t kStrip = 16;
  HWY_ALIGN T offsets[kStrip];
  for (std::int64_t first = 0; first < chunk.rows; first += kStrip) {
    const std::int64_t rows = std::min(kStrip, chunk.rows - first);
    T* scores = chunk.scores + first * plan::kChunk;
    for (std::int64_t r = 0; r < rows; ++r) offsets[r] = detail::RowMaximum(scores + r * plan::kChunk, chunk.columns);
    std::fill(offsets + rows, offsets + kStrip, T(0));
    for (std::int64_t r = 0; r < kStrip; r += lanes) {
      const auto before = hn::Load(d, maxima + first + r);
      const auto maximum = hn::Max(before, hn::Load(d, offsets + r));
      // While nothing attends, the offset is 0: -inf - 0 is -inf, where -inf - -inf were NaN.
      const auto offset = hn::IfThenZeroElse(hn::Eq(maximum, minus_infinity), maximum);
      hn::Store(maximum, d, maxima + first + r);
      hn::Store(offset, d, offsets + r);
      hn::Store(Exp2NoSubnormals(d, hn::Mul(hn::Sub(before, offset), log2e)), d, scales + first + r);
    }
    for (std::int64_t r = 0; r < rows; ++r) {
      T* row = scores + r * plan::kChunk;
      T* row_sums = sums + (first + r) * kSumLanes<T>;
      const T scale = scales[first + r];
      if (chunk.weights == nullptr) {
        detail::ExponentiateRow<false, T>(row, nullptr, chunk.columns, offsets[r], scale, row_sums);
      } else {
        const T* weights = chunk.weights + (first + r) * plan::kChunk;
        detail::ExponentiateRow<true>(row, weights, chunk.columns, offsets[r], scale, row_sums);
      }
    }
  }
}

/// scores = t, or 1 / (1 + exp(-t)), times the weights; 0 where t is -inf.
template <class T>
void NormalizeChunk(const ScoreChunk<T>& chunk, Normalizer normalizer) {
  const hn::ScalableTag<T> d;
  const auto minus_infinity = hn::Set(d, detail::kMinusInfinity<T>);
  for (std::int64_t r = 0; r < chunk.rows; ++r) {
    T* row = chunk.scores + r * plan::kChunk;
    for (std::int64_t i = 0; i < chunk.columns; i += static_cast<std::int64_t>(hn::Lanes(d))) {
      const auto score = hn::Load(d, row + i);
      auto p = normalizer == Normalizer::sigmoid ? Sigmoid(d, score) : score;
      if (chunk.weights != nullptr) {
        p = hn::Mul(p, detail::LoadWeight(d, chunk.weights + r * plan::kChunk + i, score));
      }
      hn::Store(hn::IfThenZeroElse(hn::Eq(score, minus_infinity), p), d, row + i);
    }
  }
}

}  // namespace heddle::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // the toggling guard
