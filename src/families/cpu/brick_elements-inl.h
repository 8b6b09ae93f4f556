// A part of a backward's step between its products: p w and dS of pairs of rows, as the bricks and rows that the
// products after them read (backward_bricks-inl.h). For AVX-512 alone.

// A guard that toggles, as Highway's per-target headers have.
#if defined(HEDDLE_CPU_BRICK_ELEMENTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEDDLE_CPU_BRICK_ELEMENTS_INL_H_
#undef HEDDLE_CPU_BRICK_ELEMENTS_INL_H_
#else
#define HEDDLE_CPU_BRICK_ELEMENTS_INL_H_
#endif

#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>
#include <limits>

#include "families/cpu/backward_elements-inl.h"
#include "families/cpu/brick_weights-inl.h"
#include "families/cpu/bricks-inl.h"
#include "families/cpu/cpu_backward_step.h"

#if HWY_ARCH_X86_64 && HWY_TARGET == HWY_AVX3
HWY_BEFORE_NAMESPACE();
namespace heddle::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

namespace detail {

using plan::kUnitRows;

/// Some columns of kUnitRows queries. Only rows [begin, end) of them are the step's; those of `step` and `buffers`
/// begin with row `begin`, and their columns with the part's.
struct StepPart {
  std::int64_t unit;  // of the head's groups of kUnitRows queries
  std::int64_t begin, end;
  std::int64_t column, columns;  // from the step's first one
  BackwardStep<float> step;
  StepBuffers<float> buffers;
  float score_factor;        // scores are yet to be multiplied by it
  std::byte *weights, *d_s;  // the unit's bricks from `column` on
  std::uint16_t* d_s_rows;   // [kUnitRows][kDerivativeStride], likewise
};

/// Elements a0 to a15, b0 to b15 as a0 b0 a1 b1 ...
HWY_INLINE __m512i InPairs(__m512i rows) {
  alignas(64) static constexpr std::uint16_t kOrder[32] = {0,  16, 1,  17, 2,  18, 3,  19, 4,  20, 5,
                                                           21, 6,  22, 7,  23, 8,  24, 9,  25, 10, 26,
                                                           11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  return _mm512_permutexvar_epi16(_mm512_load_si512(kOrder), rows);
}

/// Softmax in one word of lse, without mods, slopes and factors of values and gradients: what most problems have. p is
/// rounded to bf16, or is a factor of dS, which is: an exp2 of degree 3 errs by a twentieth of that.
struct PlainElements {
  using D = hn::Full512<float>;
  using V = hn::Vec<D>;
  const StepPart& part;
  V factor = hn::Set(D(), part.score_factor), log2e = hn::Set(D(), kLog2E),
    infinity = hn::Set(D(), -std::numeric_limits<float>::infinity());

  struct Row {
    const float *scores, *d_p;
    V lse, delta;
  };
  HWY_INLINE Row row(std::int64_t r) const {
    const D d;
    return {part.buffers.scores + r * kScoreStride, part.buffers.d_p + r * kScoreStride,
            hn::Set(d, part.step.queries.lse[r]), hn::Set(d, part.step.queries.delta[r])};
  }
  HWY_INLINE Differentiated<V> at(const Row& row, std::int64_t c) const {
    const D d;
    const V s = hn::Load(d, row.scores + c);
    const auto masked = hn::Eq(s, infinity);  // Ne is false for NaN, which attends
    const V p = hn::IfThenZeroElse(masked, Exp2Coarse(hn::Mul(hn::MulSub(s, factor, row.lse), log2e)));
    return {p, hn::IfThenZeroElse(masked, hn::Mul(p, hn::Sub(hn::Load(d, row.d_p + c), row.delta)))};
  }
};

/// Every other problem.
template <Normalizer kNormalizer, bool kRest, bool kMods>
struct AnyElements {
  using D = hn::Full512<float>;
  using V = hn::Vec<D>;
  const StepPart& part;
  V factor = hn::Set(D(), part.score_factor), value_factor = hn::Set(D(), part.step.value_factor);

  struct Row {
    RowNumbers<kRest, V> numbers;
    std::int64_t first;
  };
  HWY_INLINE Row row(std::int64_t r) const {
    return {NumbersOf<kNormalizer, kRest>(D(), part.step, r), r * kScoreStride};
  }
  HWY_INLINE Differentiated<V> at(const Row& row, std::int64_t c) const {
    const D d;
    const std::int64_t i = row.first + c;
    return DifferentiateVector<kNormalizer, kMods>(d, part.step, part.buffers, row.numbers, i,
                                                   hn::Mul(hn::Load(d, part.buffers.scores + i), factor),
                                                   hn::Mul(hn::Load(d, part.buffers.d_p + i), value_factor));
  }
};

/// Rows `even` and the next of the unit, as far as they are the step's: the others' elements are 0.
template <class Registers, bool kEven, bool kOdd, class Elements>
HEDDLE_AMX HWY_INLINE void DifferentiatePair(const StepPart& part, const Elements& elements, std::int64_t even) {
  using V = typename Elements::V;
  const auto row = [&](bool there, std::int64_t r) HEDDLE_AMX { return elements.row(there ? r - part.begin : 0); };
  const auto first = row(kEven, even), second = row(kOdd, even + 1);
  const std::int64_t place = even / 2 * 64;
  std::uint16_t* d_s_row = part.d_s_rows + even * plan::kDerivativeStride;
  for (std::int64_t c = 0; c < part.columns; c += kBrickColumns) {
    Differentiated<V> a{hn::Zero(hn::Full512<float>()), hn::Zero(hn::Full512<float>())}, b = a;
    if constexpr (kEven) a = elements.at(first, c);
    if constexpr (kOdd) b = elements.at(second, c);
    const std::int64_t brick = place + c / kBrickColumns * kBrickBytes;
    const __m512i d_s = Registers::round(a.d_s.raw, b.d_s.raw);
    _mm512_store_si512(part.weights + brick, InPairs(Registers::round(a.weighted.raw, b.weighted.raw)));
    _mm512_store_si512(part.d_s + brick, InPairs(d_s));
    _mm256_store_si256(reinterpret_cast<__m256i*>(d_s_row + c), _mm512_castsi512_si256(d_s));
    _mm256_store_si256(reinterpret_cast<__m256i*>(d_s_row + plan::kDerivativeStride + c),
                       _mm512_extracti64x4_epi64(d_s, 1));
  }
}

/// Pairs of rows [pair, end). A call of its own: it would be inlined behind every product.
template <class Registers, class Elements>
HEDDLE_AMX HWY_NOINLINE void DifferentiatePairs(const StepPart& part, std::int64_t pair, std::int64_t end) {
  const Elements elements{part};
  for (; pair < end; ++pair) {
    const std::int64_t r = 2 * pair;
    const bool even = r >= part.begin && r < part.end, odd = r + 1 >= part.begin && r + 1 < part.end;
    if (even && odd) {
      DifferentiatePair<Registers, true, true>(part, elements, r);
    } else if (even) {
      DifferentiatePair<Registers, true, false>(part, elements, r);
    } else if (odd) {
      DifferentiatePair<Registers, false, true>(part, elements, r);
    } else {
      DifferentiatePair<Registers, false, false>(part, elements, r);
    }
  }
}

using PairsFunction = void (*)(const StepPart& part, std::int64_t pair, std::int64_t end);

template <class Registers>
PairsFunction PairsOf(const BackwardStep<float>& step) {
  const auto of = [&]<Normalizer kNormalizer, bool kRest>() -> PairsFunction {
    if (step.weight || step.slope || !step.reads.empty()) {
      return DifferentiatePairs<Registers, AnyElements<kNormalizer, kRest, true>>;
    }
    return DifferentiatePairs<Registers, AnyElements<kNormalizer, kRest, false>>;
  };
  switch (step.normalizer) {
    case Normalizer::sigmoid:
      return of.template operator()<Normalizer::sigmoid, false>();
    case Normalizer::none:
      return of.template operator()<Normalizer::none, false>();
    case Normalizer::softmax:
      break;
  }
  const bool plain = !step.weight && !step.slope && step.reads.empty();
  if (step.queries.lse_rest != nullptr) return of.template operator()<Normalizer::softmax, true>();
  if (plain && step.gradient_factor == 1 && step.value_factor == 1) return DifferentiatePairs<Registers, PlainElements>;
  return of.template operator()<Normalizer::softmax, false>();
}

/// From columns to panels, once a tile of keys.
inline void TransposeGradients(const TransposedGradients& gradients, float* panels) {
  const std::int64_t stride = plan::gradient_stride(gradients.tile_keys);
  for (std::int64_t first = 0; first < gradients.dim; first += 16) {
    float* panel = panels + first / plan::kPanel * plan::kPanel * gradients.tile_keys + first % plan::kPanel;
    for (std::int64_t key = 0; key < gradients.keys; key += 16) {
      __m512i rows[16];
      HWY_UNROLL(16)
      for (int i = 0; i < 16; ++i) rows[i] = _mm512_load_si512(gradients.from + (first + i) * stride + key);
      TransposeWords(rows, reinterpret_cast<std::uint32_t*>(panel + key * plan::kPanel), plan::kPanel);
    }
  }
}

}  // namespace detail

}  // namespace heddle::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // AVX-512

#endif  // the toggling guard
