// Chunks that need nothing but both products, mods, and weights by maxima that stay, one behind the other: while the
// rows of chunk j go through the mods and are weighed, AMX computes O += P V of chunk j - 1 and then S = Q K^T of chunk
// j + 1, a few instructions after each row. For AVX-512 alone.

// A guard that toggles, as Highway's per-target headers have.
#if defined(HEDDLE_CPU_BRICK_PIPELINE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEDDLE_CPU_BRICK_PIPELINE_INL_H_
#undef HEDDLE_CPU_BRICK_PIPELINE_INL_H_
#else
#define HEDDLE_CPU_BRICK_PIPELINE_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "families/cpu/brick_chunks-inl.h"
#include "families/cpu/brick_products-inl.h"
#include "families/cpu/brick_weights-inl.h"
#include "families/cpu/bricks-inl.h"
#include "families/cpu/cap_of_rows-inl.h"

#if HWY_ARCH_X86_64 && HWY_TARGET == HWY_AVX3
HWY_BEFORE_NAMESPACE();
namespace heddle::cpu::HWY_NAMESPACE {

namespace detail {

/// The rows of the chunk that is weighed.
struct PipelineRows {
  PipelineRows(const BrickScores& scores, const float* row_maxima, const BrickSums& from, const BrickSums& to)
      : s(scores), kept(s, row_maxima), sums(from), new_sums(to) {
    s.columns = kPipelineKeys;
    std::copy_n(row_maxima, plan::round_up(s.rows, 16), maxima);
    std::fill_n(scales, plan::kUnitRows, 1.0F);
    find_unseen();
  }

  BrickScores s;
  KeptRows kept;
  BrickSums sums, new_sums;        // as in KeepMaxima; they take turns
  const float* factors = nullptr;  // of products
  alignas(64) float maxima[plan::kUnitRows], scales[plan::kUnitRows];
  const float* terms = nullptr;  // of the form `added`
  std::int64_t terms_apart = 0;
  bool streamed = false;  // the next chunk's are behind them
  CapOfRows cap{};        // of the form `capped`
  bool unseen = false;    // a row has seen no key
  bool grown = false;     // rows have larger maxima, and their sums and accumulators are multiplied by scales
  bool failed = false;    // a maximum may not stay: the chunk is left as it is
  LargestSum largest;

  void find_unseen() {
    const __m512 nothing = _mm512_set1_ps(kMinusInfinity<float>);
    unseen = false;
    for (std::int64_t r = 0; r < s.rows; r += 16) {
      const auto rows = static_cast<__mmask16>(0xffffU >> std::max<std::int64_t>(r + 16 - s.rows, 0));
      unseen |= _mm512_mask_cmp_ps_mask(rows, _mm512_load_ps(maxima + r), nothing, _CMP_EQ_OQ) != 0;
    }
  }
  /// Takes a maximum that is larger by too much, unless it is beyond those that may stay.
  HWY_NOINLINE void grow(std::int64_t row, __m512 largest_scores) {
    const hn::Full512<float> d;
    const float found = _mm512_reduce_max_ps(largest_scores), before = maxima[row];
    failed = !MayStay(found);
    if (failed) return;
    grown = true;
    maxima[row] = found, kept.offsets[row] = found * -kLog2E;
    scales[row] = hn::GetLane(Exp2NoSubnormals(d, hn::Set(d, (before - found) * kLog2E)));
  }
};

/// Row `row`'s t, or its products in the form `plain`.
template <RowForm kForm>
HWY_INLINE void LoadScores(const PipelineRows& p, std::int64_t row, __m512 (&t)[4]) {
  const float* scores = p.s.scores + row * plan::kChunk;
  HWY_UNROLL(4)
  for (int i = 0; i < 4; ++i) t[i] = _mm512_load_ps(scores + 16 * i);
  const __m512 factor = _mm512_set1_ps(p.factors[row]);
  if constexpr (kForm == RowForm::added) {
    const float* terms = p.terms + row * p.terms_apart;
    HWY_UNROLL(4)
    for (int i = 0; i < 4; ++i) t[i] = _mm512_fmadd_ps(t[i], factor, _mm512_loadu_ps(terms + 16 * i));
    for (int i = 0; p.streamed && i < 4; ++i) _mm_prefetch(terms + kPipelineKeys + 16 * i, _MM_HINT_T0);
  }
  if constexpr (kForm == RowForm::capped) {
    HWY_UNROLL(4)
    for (int i = 0; i < 4; ++i) t[i] = _mm512_mul_ps(t[i], factor);
    p.cap.apply(t);
  }
}

/// Rows [row, end) are weighed by maxima that stay, or that have just grown. A call of its own: it would be inlined at
/// a dozen places.
template <class Registers, RowForm kForm, bool kWeighted, bool kExact>
HEDDLE_AMX HWY_NOINLINE void WeighRows(PipelineRows& p, std::int64_t row, std::int64_t end) {
  const hn::Full512<float> d;
  LargestSum largest = p.largest;
  for (; row < end; ++row) {
    __m512 t[4];
    LoadScores<kForm>(p, row, t);
    float slope = kLog2E;
    if constexpr (kForm == RowForm::plain) {
      slope = p.kept.slopes[row];
    } else {
      if (p.failed) return;
      const __m512 most = _mm512_set1_ps(p.maxima[row] + kMostExcess);
      const __m512 found = _mm512_max_ps(_mm512_max_ps(t[0], t[1]), _mm512_max_ps(t[2], t[3]));
      if (HWY_UNLIKELY(_mm512_cmp_ps_mask(found, most, _CMP_GT_OQ) != 0)) p.grow(row, found);
    }
    const float offset = p.kept.offsets[row];
    const auto scale = hn::Set(d, p.scales[row]);
    largest.add(KeepLoaded<Registers, kWeighted, kExact>(p.s, row, t, slope, offset, scale, p.sums, p.new_sums));
  }
  p.largest = largest;
}

/// All that the pipeline reads of its tile.
struct PipelineStart {
  BrickProduct keys, values;  // of a chunk that begins at the sequence's first key, in slot 0
  PipelineWalk walk;
  ChunkMods mods;
  BrickScores scores;    // their buffer; factors: null if some are no positive numbers
  const float* factors;  // of products, whatever they are
  bool weighted;         // by a mod of weights
  bool first;            // nothing has been accumulated, and no row has seen a key
};

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

/// Finds the rows' maxima, and 0 behind the last row. False if one may not stay; rows that attend nothing have -inf.
inline bool FindMaxima(const BrickScores& s, float* maxima) {
  for (std::int64_t first = 0; first < s.rows; first += 16) {
    const __mmask16 rows = static_cast<__mmask16>(0xffffU >> std::max<std::int64_t>(first + 16 - s.rows, 0));
    const __m512 found = _mm512_maskz_mov_ps(rows, RowMaxima(s, first));
    const __mmask16 seen = _mm512_cmp_ps_mask(found, _mm512_set1_ps(kMinusInfinity<float>), _CMP_NEQ_UQ);
    const __m512 most = _mm512_set1_ps(kMostMaximum);
    if (_mm512_mask_cmp_ps_mask(seen, _mm512_abs_ps(found), most, _CMP_NLT_UQ) != 0) return false;
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

using WeighByForm = std::array<void (*)(PipelineRows& rows, std::int64_t row, std::int64_t end), kRowForms>;
template <class Registers, bool kWeighted, bool kExact>
inline constexpr WeighByForm kWeighByForm = {
    WeighRows<Registers, RowForm::plain, kWeighted, kExact>, WeighRows<Registers, RowForm::finished, kWeighted, kExact>,
    WeighRows<Registers, RowForm::added, kWeighted, kExact>, WeighRows<Registers, RowForm::capped, kWeighted, kExact>};

/// The chunks of one walk on their way through the pipeline.
template <class Registers, int kRows, int kKeySteps>
class Pipeline {
 public:
  Pipeline(Registers& registers, const PipelineStart& start, const WeighByForm& weigh)
      : registers_(registers),
        start_(start),
        walk_(start.walk),
        mods_(start.mods),
        weigh_by_form_(weigh),
        key_bytes_(start.keys.steps * kBrickBytes / kBrickColumns),
        value_bytes_(start.values.columns * kBrickBytes / kBrickDepth) {}

  /// Returns the chunks that are done: fewer than there are if a row's sum grew too large, or if a maximum may not
  /// stay. maxima, sums: those that rows have, or come to have.
  HEDDLE_AMX HWY_NOINLINE std::int64_t run(float* maxima, BrickSums& sums, BrickSums& new_sums) {
    PipelineChunk before{}, chunk{}, after{};
    if (!walk_.next(chunk)) return 0;
    multiply_keys(chunk, 0, [] {});
    alignas(64) float found[plan::kUnitRows] = {};
    RowForm form = RowForm::plain;
    if (start_.first && !find_maxima(chunk, found, form)) return 0;
    PipelineRows rows(start_.scores, start_.first ? found : maxima, sums, new_sums);
    rows.factors = start_.factors, rows.s.weights = mods_.weights();
    std::int64_t done = 0;
    for (bool more = true; more; ++done, before = chunk, chunk = after) {
      more = walk_.next(after);
      if (!start_.first || done > 0) form = start_chunk(rows, chunk, done);
      const auto weigh = weigh_by_form_[static_cast<std::size_t>(form)];
      RowTurns turns(rows.s.rows, (more ? key_steps() : 0) + (done > 0 ? value_steps() : 0));
      const auto weigh_rows = [&]() HWY_ATTR {
        const std::int64_t row = turns.row();
        weigh(rows, row, turns.next());
      };
      if (done > 0) multiply_values(before, done - 1, weigh_rows);
      if (more) multiply_keys(after, done + 1, weigh_rows);
      if (done == 0 && !more) weigh(rows, 0, rows.s.rows);
      if (rows.failed || (form == RowForm::plain && rows.largest.too_large())) return done;
      std::swap(sums, new_sums), std::swap(rows.sums, rows.new_sums);
      end_chunk(rows, maxima, done);
    }
    multiply_values(before, done - 1, [] {});
    return done;
  }

 private:
  std::int64_t key_steps() const { return start_.keys.columns * start_.keys.steps; }
  std::int64_t value_steps() const { return start_.values.columns * start_.values.steps; }

  bool is_scaled(const PipelineChunk& chunk) const { return *chunk.mod || start_.scores.factors == nullptr; }
  RowForm start_chunk(PipelineRows& rows, const PipelineChunk& chunk, std::int64_t slot) {
    rows.s.scores = start_.scores.scores + slot % 2 * kPipelineKeys;
    rows.grown = false, rows.largest = LargestSum();
    const RowForm form = mods_.start(chunk, rows.s.scores, is_scaled(chunk) || rows.unseen);
    const TileForm& found = mods_.form();
    if (form == RowForm::added) {
      rows.terms = mods_.terms(), rows.terms_apart = found.terms_apart, rows.streamed = found.streamed;
    }
    if (form == RowForm::capped) rows.cap = CapOfRows(found.inside, found.outside);
    rows.s.weights = mods_.weights();
    return form;
  }
  /// The rows' maxima in the first chunk, whose mods have to be there. False if one may not stay.
  bool find_maxima(const PipelineChunk& chunk, float* found, RowForm& form) {
    BrickScores scores = start_.scores;
    form = mods_.finish(chunk, scores.scores, is_scaled(chunk));
    if (form == RowForm::finished) scores.factors = nullptr;
    return FindMaxima(scores, found);
  }
  void end_chunk(PipelineRows& rows, float* maxima, std::int64_t done) {
    if (rows.grown || (done == 0 && start_.first)) std::copy_n(rows.maxima, rows.s.rows, maxima);
    if (!rows.grown) return;
    rows.find_unseen();
    RescaleRows(start_.values, rows.s.rows, rows.scales);
    std::fill_n(rows.scales, plan::kUnitRows, 1.0F);
  }

  template <class Between>
  HEDDLE_AMX HWY_INLINE void multiply_keys(const PipelineChunk& chunk, std::int64_t slot, const Between& between) {
    BrickProduct product = start_.keys;
    product.b += chunk.begin * key_bytes_, product.c += slot % 2 * kPipelineKeys;
    if constexpr (kRows == 2 && kKeySteps > 0) {
      ResidentMultiply<Registers, kKeySteps, false>(registers_, product).run(between);
    } else if constexpr (kRows == 2) {
      SquareMultiply<Registers>(registers_, product).run(between);
    } else {
      BrickMultiply<Registers, kRows>(registers_, product).run(between);
    }
  }
  template <class Between>
  HEDDLE_AMX HWY_INLINE void multiply_values(const PipelineChunk& chunk, std::int64_t slot, const Between& between) {
    BrickProduct product = start_.values;
    product.a = static_cast<const float*>(product.a) + slot % 2 * kPipelineKeys;
    product.b += chunk.begin * value_bytes_;
    product.add = slot > 0 || !start_.first;
    if constexpr (kRows == 1) {
      BrickMultiply<Registers, 1>(registers_, product).run(between);
    } else if (product.add) {
      ResidentMultiply<Registers, 2, true>(registers_, product).run(between);
    } else {
      ResidentMultiply<Registers, 2, false>(registers_, product).run(between);
    }
  }

  Registers& registers_;
  const PipelineStart& start_;
  PipelineWalk walk_;
  ChunkMods mods_;
  const WeighByForm& weigh_by_form_;
  std::int64_t key_bytes_, value_bytes_;  // of a key
};

template <class Registers>
std::int64_t RunPipeline(Registers& registers, const PipelineStart& start, float* maxima, BrickSums& sums,
                         BrickSums& new_sums) {
  const WeighByForm& weigh =
      *WithConstants([](auto weighted, auto exact) { return &kWeighByForm<Registers, weighted.value, exact.value>; },
                     start.weighted, sums.exact != nullptr);
  const auto run = [&](auto rows, auto key_steps) {
    return Pipeline<Registers, rows.value, key_steps.value>(registers, start, weigh).run(maxima, sums, new_sums);
  };
  using One = std::integral_constant<int, 1>;
  using Two = std::integral_constant<int, 2>;
  using Any = std::integral_constant<int, 0>;
  if (start.scores.rows <= 16) return run(One(), Any());
  if (start.keys.steps == 1) return run(Two(), One());
  return start.keys.steps == 2 ? run(Two(), Two()) : run(Two(), Any());
}

}  // namespace detail

}  // namespace heddle::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // AVX-512

#endif  // the toggling guard
