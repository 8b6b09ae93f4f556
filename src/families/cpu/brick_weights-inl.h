// Scores of a chunk to weights of bf16, for AMX: by the true maxima of the rows, or by those that they have. Each row's
// weights overwrite the first half of its scores, and are 0 up to whole bricks. For AVX-512 alone.

// A guard that toggles, as Highway's per-target headers have.
#if defined(HEDDLE_CPU_BRICK_WEIGHTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEDDLE_CPU_BRICK_WEIGHTS_INL_H_
#undef HEDDLE_CPU_BRICK_WEIGHTS_INL_H_
#else
#define HEDDLE_CPU_BRICK_WEIGHTS_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "families/cpu/matrix_registers-inl.h"
#include "families/cpu/probabilities-inl.h"
#include "families/cpu/target_data.h"
#include "tile_evaluator/tile_math-inl.h"

#if HWY_ARCH_X86_64 && HWY_TARGET == HWY_AVX3
HWY_BEFORE_NAMESPACE();
namespace heddle::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

namespace detail {

inline constexpr float kLog2E = 0x1.715476p0F;
/// The largest sum of weights, a lane, that a maximum may cause which is no longer the row's.
inline constexpr float kMostSum = 0x1p30F;

/// Scores [rows][kChunk] of a chunk, -inf where nothing attends. Row r's are yet to be multiplied by factors[r], a
/// positive number; null: they have been. weights: of the weight mod, or null.
struct BrickScores {
  float* scores;
  const float* weights;
  const float* factors;
  std::int64_t rows, columns;
  std::uint64_t of = ~std::uint64_t{0};  // rows that are computed, a bit each

  bool has(std::int64_t row) const { return (of >> row & 1) != 0; }
  float factor(std::int64_t row) const { return factors == nullptr ? 1 : factors[row]; }
  std::uint16_t* rounded(std::int64_t row) const {
    return reinterpret_cast<std::uint16_t*>(scores + row * plan::kChunk);
  }
};

/// Maxima beyond this are subtracted before scores are multiplied by log2 e. KeptRows rounds the product of the maximum
/// instead, by up to 2^-14 here: less than Exp2Coarse errs by.
inline constexpr float kMostMaximum = 0x1p10F;

/// Under a mod, which may let scores grow from chunk to chunk, rows keep their maximum up to scores that are larger by
/// this. Without one, the sums of weights tell, when it is too late for those of the chunk.
inline constexpr float kMostExcess = 40;

/// Whether a row may keep that maximum.
inline bool MayStay(float maximum) { return std::abs(maximum) < kMostMaximum; }

/// The largest lane of each vector: 16 rows to one.
HWY_INLINE __m512 MaximaOfLanes(const __m512 (&in)[16]) {
  __m512 pairs[8], fours[4];
  HWY_UNROLL(8)
  for (int i = 0; i < 8; ++i) {
    pairs[i] =
        _mm512_max_ps(_mm512_unpacklo_ps(in[2 * i], in[2 * i + 1]), _mm512_unpackhi_ps(in[2 * i], in[2 * i + 1]));
  }
  HWY_UNROLL(4)
  for (int i = 0; i < 4; ++i) {
    const __m512d a = _mm512_castps_pd(pairs[2 * i]), b = _mm512_castps_pd(pairs[2 * i + 1]);
    fours[i] = _mm512_max_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(a, b)), _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)));
  }
  const auto halve = [](__m512 a, __m512 b) HWY_ATTR {  // quarters of 128 bits
    return _mm512_max_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
  };
  return halve(halve(fours[0], fours[1]), halve(fours[2], fours[3]));
}

/// The largest scores, times factors, of 16 rows from `first` on; -inf of rows that are not computed or not there.
HWY_INLINE __m512 RowMaxima(const BrickScores& s, std::int64_t first) {
  __m512 rows[16];
  for (std::int64_t i = 0; i < 16; ++i) {
    rows[i] = _mm512_set1_ps(kMinusInfinity<float>);
    if (first + i >= s.rows || !s.has(first + i)) continue;
    const float* row = s.scores + (first + i) * plan::kChunk;
    for (std::int64_t column = 0; column < s.columns; column += 16) {
      rows[i] = _mm512_max_ps(rows[i], _mm512_load_ps(row + column));
    }
  }
  const __m512 maxima = MaximaOfLanes(rows);
  return s.factors == nullptr ? maxima : _mm512_mul_ps(maxima, _mm512_load_ps(s.factors + first));
}

/// 2^x within 9e-5 of its value, and exactly for integers; 0 below the normal range.
HWY_INLINE hn::Vec512<float> Exp2Coarse(hn::Vec512<float> x) {
  static constexpr float kTerms[] = {0x1.63e65ap-1F, 0x1.d23786p-3F, 0x1.3baaacp-4F};  // (2^r - 1) / r, 0 <= r < 1
  const hn::Full512<float> d;
  const hn::Vec512<float> r{_mm512_reduce_ps(x.raw, 0x09)};  // x - floor(x)
  return ScaleFrom(ExpConstants<float>::kExp2Normal, x, hn::MulAdd(Polynomial(d, r, kTerms), r, hn::Set(d, 1.0F)), x);
}

/// Rounded p times the mod's weights, rounded again. Plain attention rounds once, but the two rows of sums that a row
/// of one key has cancel only if p is the number that is summed.
template <class Registers>
HEDDLE_AMX HWY_INLINE __m512i WeighPairs(const BrickScores& s, std::int64_t r, std::int64_t i, __m512i pairs,
                                         __m512 low_score, __m512 high_score) {
  const hn::Full512<float> d;
  const float* weights = s.weights + r * plan::kChunk + i;
  const auto times = [&](__m256i p, const float* weight, __m512 score) HWY_ATTR {
    const __m512 wide = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(p), 16));
    return _mm512_mul_ps(wide, LoadWeight(d, weight, hn::Vec512<float>{score}).raw);
  };
  const __m512 low = times(_mm512_castsi512_si256(pairs), weights, low_score);
  if (i + 16 >= s.columns) return Registers::round(low, _mm512_setzero_ps());
  return Registers::round(low, times(_mm512_extracti64x4_epi64(pairs, 1), weights + 16, high_score));
}

/// Sums of a row by lane: of exact weights, and of rounded ones. o is divided by the latter: then the error of a weight
/// moves o only as far as its value lies from o, and a row of one key is exact. Plain attention has that where the
/// largest weight is 1, which it is not if a maximum stays.
struct BrickSums {
  float* exact;    // [rows][16]; null: not wanted
  float* rounded;  // [rows][16]

  float* exact_of(std::int64_t row) const { return exact + row * 16; }
  float* rounded_of(std::int64_t row) const { return rounded + row * 16; }
};

/// Rounds p = weigh(score) over a row, and adds it to the row's sums from `from` to `to`, the former multiplied by
/// `scale`. Returns the sums of rounded weights.
template <class Registers, bool kWeighted, bool kExact, class Weigh>
HEDDLE_AMX HWY_INLINE hn::Vec512<float> WeighRow(const BrickScores& s, std::int64_t r, hn::Vec512<float> scale,
                                                 const BrickSums& from, const BrickSums& to, const Weigh& weigh) {
  const hn::Full512<float> d;
  const float* row = s.scores + r * plan::kChunk;
  auto exact = kExact ? hn::Mul(hn::Load(d, from.exact_of(r)), scale) : hn::Zero(d);
  __m512 rounded = hn::Mul(hn::Load(d, from.rounded_of(r)), scale).raw;
  std::uint16_t* to_row = s.rounded(r);
  for (std::int64_t i = 0; i < s.columns; i += 32) {
    const auto low = hn::Load(d, row + i), low_p = weigh(low);
    auto high = hn::Zero(d), high_p = high;
    if (i + 16 < s.columns) high = hn::Load(d, row + i + 16), high_p = weigh(high);
    if constexpr (kExact) exact = hn::Add(hn::Add(exact, low_p), high_p);
    __m512i pairs = Registers::round(low_p.raw, high_p.raw);
    rounded = Registers::add_pairs(rounded, pairs);
    if constexpr (kWeighted) pairs = WeighPairs<Registers>(s, r, i, pairs, low.raw, high.raw);
    _mm512_store_si512(to_row + i, pairs);
  }
  if constexpr (kExact) hn::Store(exact, d, to.exact_of(r));
  _mm512_store_ps(to.rounded_of(r), rounded);
  return hn::Vec512<float>{rounded};
}

/// How rows weigh scores by maxima that they have, all of them finite numbers: p = 2^(slope score + offset).
struct KeptRows {
  alignas(64) float slopes[plan::kDecodeRows], offsets[plan::kDecodeRows];

  KeptRows(const BrickScores& s, const float* maxima) {
    const __m512 log2e = _mm512_set1_ps(kLog2E);
    for (std::int64_t r = 0; r < s.rows; r += 16) {
      const __m512 factors = s.factors == nullptr ? _mm512_set1_ps(1) : _mm512_load_ps(s.factors + r);
      _mm512_store_ps(slopes + r, _mm512_mul_ps(factors, log2e));
      set_maxima(r, _mm512_load_ps(maxima + r));
    }
  }
  /// Sets those of 16 rows from `first` on. Rows that have seen no key have an offset of 0: -inf stays what it is.
  HWY_INLINE void set_maxima(std::int64_t first, __m512 maxima) {
    const __mmask16 seen = _mm512_cmp_ps_mask(maxima, _mm512_set1_ps(kMinusInfinity<float>), _CMP_NEQ_UQ);
    _mm512_store_ps(offsets + first, _mm512_maskz_mul_ps(seen, maxima, _mm512_set1_ps(-kLog2E)));
  }
};

/// Rows of 16 from `first` on whose scores exceed their maxima by too much.
inline __mmask16 RowsThatGrow(const BrickScores& s, std::int64_t first, const float* maxima, __m512& found) {
  found = RowMaxima(s, first);
  const __m512 most = _mm512_add_ps(_mm512_load_ps(maxima + first), _mm512_set1_ps(kMostExcess));
  return _mm512_cmp_ps_mask(found, most, _CMP_GT_OQ);
}

/// 2^(slope score + offset). Without kExact, within 9e-5 of it.
template <bool kExact>
HWY_INLINE hn::Vec512<float> WeightOf(hn::Vec512<float> score, hn::Vec512<float> slope, hn::Vec512<float> offset) {
  const auto exponent = hn::MulAdd(score, slope, offset);
  if constexpr (kExact) return Exp2NoSubnormals(hn::Full512<float>(), exponent);
  return Exp2Coarse(exponent);
}

/// Row r's weights. new_sums: what `sums` become, times `scale`. Without exact sums, weights err by up to
/// 9e-5. Returns the sum by lane, which tells whether the weights are too large; the scores are lost.
template <class Registers, bool kWeighted, bool kExact>
HEDDLE_AMX HWY_INLINE __m512 KeepRow(const BrickScores& s, std::int64_t r, const KeptRows& kept,
                                     hn::Vec512<float> scale, const BrickSums& sums, const BrickSums& new_sums) {
  const hn::Full512<float> d;
  const auto slope = hn::Set(d, kept.slopes[r]), offset = hn::Set(d, kept.offsets[r]);
  const auto weigh = [&](hn::Vec512<float> score) HWY_ATTR { return WeightOf<kExact>(score, slope, offset); };
  return WeighRow<Registers, kWeighted, kExact>(s, r, scale, sums, new_sums, weigh).raw;
}

/// KeepRow for 64 scores in registers, in whatever form, with a slope and an offset for them.
template <class Registers, bool kWeighted, bool kExact>
HEDDLE_AMX HWY_INLINE __m512 KeepLoaded(const BrickScores& s, std::int64_t r, const __m512 (&scores)[4],
                                        float row_slope, float row_offset, hn::Vec512<float> scale,
                                        const BrickSums& sums, const BrickSums& new_sums) {
  const hn::Full512<float> d;
  const auto slope = hn::Set(d, row_slope), offset = hn::Set(d, row_offset);
  auto exact = kExact ? hn::Mul(hn::Load(d, sums.exact_of(r)), scale) : hn::Zero(d);
  __m512 rounded = hn::Mul(hn::Load(d, sums.rounded_of(r)), scale).raw;
  HWY_UNROLL(2)
  for (int half = 0; half < 2; ++half) {
    const __m512 low = scores[2 * half], high = scores[2 * half + 1];
    const auto low_p = WeightOf<kExact>(hn::Vec512<float>{low}, slope, offset);
    const auto high_p = WeightOf<kExact>(hn::Vec512<float>{high}, slope, offset);
    if constexpr (kExact) exact = hn::Add(hn::Add(exact, low_p), high_p);
    __m512i pairs = Registers::round(low_p.raw, high_p.raw);
    rounded = Registers::add_pairs(rounded, pairs);
    if constexpr (kWeighted) pairs = WeighPairs<Registers>(s, r, 32 * half, pairs, low, high);
    _mm512_store_si512(s.rounded(r) + 32 * half, pairs);
  }
  if constexpr (kExact) hn::Store(exact, d, new_sums.exact_of(r));
  _mm512_store_ps(new_sums.rounded_of(r), rounded);
  return rounded;
}

/// SoftmaxChunk's step, to weights of bf16. maxima, scales [rows up to whole vectors]. Rows that `s.of` leaves out stay
/// as they are, with a scale of 1. Rows weigh as KeepRow does, unless their maxima are too large for it.
template <class Registers, bool kWeighted, bool kExact>
HEDDLE_AMX void TakeMaxima(const BrickScores& s, float* maxima, float* scales, const BrickSums& sums) {
  const hn::Full512<float> d;
  const auto minus_infinity = hn::Set(d, kMinusInfinity<float>), log2e = hn::Set(d, kLog2E);
  alignas(64) float offsets[plan::kDecodeRows];
  for (std::int64_t first = 0; first < s.rows; first += 16) {
    const auto before = hn::Load(d, maxima + first);
    const auto maximum = hn::Max(before, hn::Vec512<float>{RowMaxima(s, first)});
    // While nothing attends, the offset is 0: -inf - 0 is -inf, where -inf - -inf were NaN.
    const auto offset = hn::IfThenZeroElse(hn::Eq(maximum, minus_infinity), maximum);
    hn::Store(maximum, d, maxima + first);
    hn::Store(offset, d, offsets + first);
    hn::Store(Exp2NoSubnormals(d, hn::Mul(hn::Sub(before, offset), log2e)), d, scales + first);
  }
  const KeptRows kept(s, offsets);
  for (std::int64_t r = 0; r < s.rows; ++r) {
    if (!s.has(r)) continue;
    const auto scale = hn::Set(d, scales[r]), factor = hn::Set(d, s.factor(r)), top = hn::Set(d, offsets[r]);
    if (MayStay(offsets[r])) {
      KeepRow<Registers, kWeighted, kExact>(s, r, kept, scale, sums, sums);
    } else {
      const auto weigh = [&](hn::Vec512<float> score) HWY_ATTR {
        return Exp2NoSubnormals(d, hn::Mul(hn::Sub(hn::Mul(score, factor), top), log2e));
      };
      WeighRow<Registers, kWeighted, kExact>(s, r, scale, sums, sums, weigh);
    }
  }
}

/// Finds sums that are too large or NaN. As integers, NaN and infinity are larger than any number of their sign, and
/// negative numbers than all others.
class LargestSum {
 public:
  HWY_INLINE LargestSum() { bits_ = _mm512_setzero_si512(); }
  HWY_INLINE explicit LargestSum(__m512i bits) { bits_ = bits; }
  HWY_INLINE __m512i bits() const { return bits_; }
  HWY_INLINE void add(__m512 sum) { bits_ = _mm512_max_epu32(bits_, _mm512_castps_si512(sum)); }
  HWY_INLINE bool too_large() const { return TooLarge(_mm512_castsi512_ps(bits_)); }
  static HWY_INLINE bool TooLarge(__m512 sum) {
    return _mm512_cmp_ps_mask(sum, _mm512_set1_ps(kMostSum), _CMP_NLT_UQ) != 0;
  }

 private:
  __m512i bits_;
};

/// A bit for each row whose sum, weights that were kept included, is too large or NaN.
inline std::uint64_t RowsThatFail(const BrickScores& s, const BrickSums& new_sums) {
  std::uint64_t failed = 0;
  for (std::int64_t r = 0; r < s.rows; ++r) {
    const bool fails = s.has(r) && LargestSum::TooLarge(_mm512_load_ps(new_sums.rounded_of(r)));
    failed |= fails ? std::uint64_t{1} << r : 0;
  }
  return failed;
}

/// By the maxima that rows have. Returns, a bit each, the rows whose scores are lost.
template <class Registers, bool kWeighted, bool kExact>
HEDDLE_AMX std::uint64_t KeepMaxima(const BrickScores& s, const float* maxima, const BrickSums& sums,
                                    const BrickSums& new_sums) {
  const KeptRows kept(s, maxima);
  const auto one = hn::Set(hn::Full512<float>(), 1.0F);
  LargestSum largest;
  for (std::int64_t r = 0; r < s.rows; ++r) {
    if (s.has(r)) largest.add(KeepRow<Registers, kWeighted, kExact>(s, r, kept, one, sums, new_sums));
  }
  return largest.too_large() ? RowsThatFail(s, new_sums) : 0;
}

/// Calls f with one constant for each value.
template <class F>
auto WithConstants(F&& f, bool first, bool second) {
  if (first) return second ? f(std::true_type(), std::true_type()) : f(std::true_type(), std::false_type());
  return second ? f(std::false_type(), std::true_type()) : f(std::false_type(), std::false_type());
}

/// Both by what the arguments hold.
template <class Registers>
void TakeMaxima(const BrickScores& s, float* maxima, float* scales, const BrickSums& sums) {
  WithConstants(
      [&](auto weighted, auto exact) { TakeMaxima<Registers, weighted.value, exact.value>(s, maxima, scales, sums); },
      s.weights != nullptr, sums.exact != nullptr);
}
template <class Registers>
std::uint64_t KeepMaxima(const BrickScores& s, const float* maxima, const BrickSums& sums, const BrickSums& new_sums) {
  return WithConstants(
      [&](auto weighted, auto exact) {
        return KeepMaxima<Registers, weighted.value, exact.value>(s, maxima, sums, new_sums);
      },
      s.weights != nullptr, sums.exact != nullptr);
}

}  // namespace detail

}  // namespace heddle::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // AVX-512

#endif  // the toggling guard
