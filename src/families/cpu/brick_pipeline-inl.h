// Chunks that need nothing but both products and weights by maxima that stay, one behind the other: while the rows of
// chunk j are weighed, AMX computes O += P V of chunk j - 1 and then S = Q K^T of chunk j + 1, a few instructions after
// each row. For AVX-512 alone.

// A guard that toggles, as Highway's per-target headers have.
#if defined(HEDDLE_CPU_BRICK_PIPELINE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEDDLE_CPU_BRICK_PIPELINE_INL_H_
#undef HEDDLE_CPU_BRICK_PIPELINE_INL_H_
#else
#define HEDDLE_CPU_BRICK_PIPELINE_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "families/cpu/brick_products-inl.h"
#include "families/cpu/brick_weights-inl.h"
#include "families/cpu/bricks-inl.h"

#if HWY_ARCH_X86_64 && HWY_TARGET == HWY_AVX3
HWY_BEFORE_NAMESPACE();
namespace heddle::cpu::HWY_NAMESPACE {

namespace detail {

/// Keys of a chunk: half of the columns of the scores' buffer, so that two chunks stand there.
inline constexpr std::int64_t kPipelineKeys = plan::kChunk / 2;

/// A run of chunks: the first one, and how far apart they are.
struct PipelineChunks {
  BrickProduct keys;                      // of the first chunk
  BrickProduct values;                    // likewise
  std::int64_t keys_apart, values_apart;  // bytes from a chunk's bricks to the next one's
  std::int64_t count;
  // Makes scores in slot chunk % 2 what rows weigh; null: they are.
  void (*finish_scores)(void* tile, std::int64_t chunk);
  void* tile;
  bool first;  // no row has seen a key: rows take the maxima of the first chunk, and values are not added to any

  BrickProduct keys_of(std::int64_t chunk) const {
    BrickProduct p = keys;
    p.b += chunk * keys_apart, p.c += chunk % 2 * kPipelineKeys;
    return p;
  }
  BrickProduct values_of(std::int64_t chunk) const {
    BrickProduct p = values;
    p.a = static_cast<const float*>(p.a) + chunk % 2 * kPipelineKeys;
    p.b += chunk * values_apart;
    return p;
  }
};

/// Weighs rows [row, end) by maxima that stay, or that have just grown: then sums are multiplied by scales. A call of
/// its own: it would be inlined at a dozen places.
template <class Registers, bool kExact>
HEDDLE_AMX HWY_NOINLINE __m512i KeepRows(const BrickScores& s, std::int64_t row, std::int64_t end, const KeptRows& kept,
                                         const float* scales, const BrickSums& sums, const BrickSums& new_sums,
                                         __m512i largest) {
  const hn::Full512<float> d;
  LargestSum of(largest);
  for (; row < end; ++row) {
    of.add(KeepRow<Registers, false, kExact, kPipelineKeys>(s, row, kept, hn::Set(d, scales[row]), sums, new_sums));
  }
  return of.bits();
}

/// Gives rows whose scores have grown too much their true maxima. False if one of them may not stay; nothing has
/// changed then. scales: of their sums and accumulators, 1 if the maximum stays.
inline bool TakeLargerMaxima(const BrickScores& s, float* maxima, KeptRows& kept, float* scales, bool& any) {
  const hn::Full512<float> d;
  __m512 found[plan::kUnitRows / 16];
  __mmask16 grown[plan::kUnitRows / 16] = {};
  any = false;
  for (std::int64_t first = 0; first < s.rows; first += 16) {
    const std::int64_t i = first / 16;
    grown[i] = RowsThatGrow(s, first, maxima, found[i]);
    any = any || grown[i] != 0;
    const __m512 most = _mm512_set1_ps(kMostMaximum);
    if (_mm512_mask_cmp_ps_mask(grown[i], _mm512_abs_ps(found[i]), most, _CMP_NLT_UQ) != 0) return false;
  }
  for (std::int64_t first = 0; any && first < s.rows; first += 16) {
    const std::int64_t i = first / 16;
    const __m512 before = _mm512_load_ps(maxima + first), now = _mm512_mask_mov_ps(before, grown[i], found[i]);
    const __m512 change = _mm512_mul_ps(_mm512_sub_ps(before, now), _mm512_set1_ps(kLog2E));
    const __m512 scale = Exp2NoSubnormals(d, hn::Vec512<float>{change}).raw;
    _mm512_store_ps(scales + first, _mm512_mask_mov_ps(_mm512_set1_ps(1), grown[i], scale));
    _mm512_store_ps(maxima + first, now);
    kept.set_maxima(first, now);
  }
  return true;
}

/// The accumulators of rows whose scales are not 1.
inline void RescaleRows(const BrickProduct& values, std::int64_t rows, const float* scales) {
  for (std::int64_t r = 0; r < rows; ++r) {
    if (scales[r] == 1) continue;
    float* row = values.c + r * values.c_stride / static_cast<std::int64_t>(sizeof(float));
    for (std::int64_t i = 0; i < values.columns * kBrickColumns; i += 16) {
      _mm512_store_ps(row + i, _mm512_mul_ps(_mm512_load_ps(row + i), _mm512_set1_ps(scales[r])));
    }
  }
}

/// Finds the rows' maxima, and 0 behind the last row. False if one may not stay.
inline bool FindMaxima(const BrickScores& s, float* maxima) {
  for (std::int64_t first = 0; first < s.rows; first += 16) {
    const __mmask16 rows = static_cast<__mmask16>(0xffffU >> std::max<std::int64_t>(first + 16 - s.rows, 0));
    const __m512 found = _mm512_maskz_mov_ps(rows, RowMaxima(s, first));
    if (_mm512_cmp_ps_mask(_mm512_abs_ps(found), _mm512_set1_ps(kMostMaximum), _CMP_NLT_UQ) != 0) return false;
    _mm512_store_ps(maxima + first, found);
  }
  return true;
}

/// Spreads rows evenly over the steps of products.
class RowTurns {
 public:
  RowTurns(std::int64_t rows, std::int64_t steps)
      : rows_(rows), rate_((rows << 16) / std::max<std::int64_t>(steps, 1) + 1) {}

  std::int64_t row() const { return row_; }
  /// Behind the next step: the end of the rows that are weighed there.
  HWY_INLINE std::int64_t next() { return row_ = std::min(rows_, ++step_ * rate_ >> 16); }

 private:
  std::int64_t rows_, rate_, step_ = 0, row_ = 0;
};

/// Runs the pipeline; returns the chunks that are done, which are fewer than `count` if a row's sum grew too large.
/// sums, new_sums: as in KeepMaxima; they take turns.
/// maxima: those that rows have, or come to have.
template <class Registers, int kRows, bool kExact, int kKeySteps>
HEDDLE_AMX HWY_NOINLINE std::int64_t RunPipeline(Registers& registers, const PipelineChunks& chunks, BrickScores s,
                                                 float* maxima, BrickSums& sums, BrickSums& new_sums) {
  float* const scores = s.scores;
  s.columns = kPipelineKeys;
  const std::int64_t key_steps = chunks.keys.columns * chunks.keys.steps,
                     value_steps = chunks.values.columns * chunks.values.steps;
  const auto multiply_keys = [&](std::int64_t of, const auto& between) HWY_ATTR {
    const BrickProduct product = chunks.keys_of(of);
    if constexpr (kRows == 2 && kKeySteps > 0) {
      ResidentMultiply<Registers, kKeySteps, false>(registers, product).run(between);
    } else if constexpr (kRows == 2) {
      SquareMultiply<Registers>(registers, product).run(between);
    } else {
      BrickMultiply<Registers, kRows>(registers, product).run(between);
    }
    if (chunks.finish_scores != nullptr) chunks.finish_scores(chunks.tile, of);
  };
  const auto multiply_values = [&](std::int64_t of, const auto& between) HWY_ATTR {
    BrickProduct product = chunks.values_of(of);
    product.add = of > 0 || !chunks.first;
    if constexpr (kRows == 1) {
      BrickMultiply<Registers, 1>(registers, product).run(between);
    } else if (product.add) {
      ResidentMultiply<Registers, 2, true>(registers, product).run(between);
    } else {
      ResidentMultiply<Registers, 2, false>(registers, product).run(between);
    }
  };
  const auto nothing = [] {};
  multiply_keys(0, nothing);
  alignas(64) float own_maxima[plan::kUnitRows];
  if (chunks.first && !FindMaxima(s, own_maxima)) return 0;
  KeptRows kept(s, chunks.first ? own_maxima : maxima);
  alignas(64) float scales[plan::kUnitRows];
  std::fill_n(scales, plan::kUnitRows, 1.0F);
  const bool may_grow = chunks.finish_scores != nullptr;
  std::int64_t chunk = 0;
  for (; chunk < chunks.count; ++chunk) {
    s.scores = scores + chunk % 2 * kPipelineKeys;
    const bool has_next = chunk + 1 < chunks.count;
    const std::int64_t steps = (has_next ? key_steps : 0) + (chunk > 0 ? value_steps : 0);
    bool grown = false;
    if (may_grow && (chunk > 0 || !chunks.first) && !TakeLargerMaxima(s, maxima, kept, scales, grown)) {
      if (chunk > 0) multiply_values(chunk - 1, nothing);
      return chunk;
    }
    __m512i largest = _mm512_setzero_si512();
    RowTurns turns(s.rows, steps);
    const auto weigh_rows = [&]() HWY_ATTR {
      const std::int64_t row = turns.row(), end = turns.next();
      largest = KeepRows<Registers, kExact>(s, row, end, kept, scales, sums, new_sums, largest);
    };
    if (chunk > 0) multiply_values(chunk - 1, weigh_rows);
    if (has_next) multiply_keys(chunk + 1, weigh_rows);
    if (steps == 0) largest = KeepRows<Registers, kExact>(s, 0, s.rows, kept, scales, sums, new_sums, largest);
    if (!may_grow && LargestSum(largest).too_large()) return chunk;
    std::swap(sums, new_sums);
    if (chunk == 0 && chunks.first) std::copy_n(own_maxima, s.rows, maxima);
    if (!grown) continue;
    RescaleRows(chunks.values, s.rows, scales);
    std::fill_n(scales, plan::kUnitRows, 1.0F);
  }
  multiply_values(chunk - 1, nothing);
  return chunk;
}

template <class Registers>
std::int64_t RunPipeline(Registers& registers, const PipelineChunks& chunks, const BrickScores& s, float* maxima,
                         BrickSums& sums, BrickSums& new_sums) {
  const auto run = [&](auto rows, auto key_steps) {
    constexpr int kRows = rows.value, kSteps = key_steps.value;
    const auto pipeline = sums.exact != nullptr ? RunPipeline<Registers, kRows, true, kSteps>
                                                : RunPipeline<Registers, kRows, false, kSteps>;
    return pipeline(registers, chunks, s, maxima, sums, new_sums);
  };
  using One = std::integral_constant<int, 1>;
  using Two = std::integral_constant<int, 2>;
  using Any = std::integral_constant<int, 0>;
  if (s.rows <= 16) return run(One(), Any());
  if (chunks.keys.steps == 1) return run(Two(), One());
  return chunks.keys.steps == 2 ? run(Two(), Two()) : run(Two(), Any());
}

}  // namespace detail

}  // namespace heddle::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // AVX-512

#endif  // the toggling guard
