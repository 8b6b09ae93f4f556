// A softcap of a row's 64 scores, for AVX-512 alone.

// A guard that toggles, as Highway's per-target headers have.
#if defined(HEDDLE_CPU_CAP_OF_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEDDLE_CPU_CAP_OF_ROWS_INL_H_
#undef HEDDLE_CPU_CAP_OF_ROWS_INL_H_
#else
#define HEDDLE_CPU_CAP_OF_ROWS_INL_H_
#endif

#include <hwy/highway.h>

#include "tile_evaluator/tile_math-inl.h"

#if HWY_ARCH_X86_64 && HWY_TARGET == HWY_AVX3
HWY_BEFORE_NAMESPACE();
namespace heddle::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

namespace detail {

/// t = outside * tanh(inside * score). Scores of a row that are all within the cap, |inside * score| <= 1, take a
/// polynomial: a third of tanh's operations.
class CapOfRows {
 public:
  CapOfRows() = default;
  CapOfRows(float inside, float outside) : inside_(inside), outside_(outside) {
    // tanh(x) / x in powers of x^2, within 1.2 units in the last place up to 1.
    static constexpr float kSeries[kTerms] = {1.0F,           -0x1.55552ep-2F, 0x1.110aa4p-3F, -0x1.b9490ap-5F,
                                              0x1.5f89b8p-6F, -0x1.03077p-7F,  0x1.29f53ap-9F, -0x1.6fd782p-12F};
    for (int i = 0; i < kTerms; ++i) terms_[i] = kSeries[i] * (inside * outside);
  }

  HWY_INLINE void apply(__m512 (&t)[4]) const {
    const __m512 inside = _mm512_set1_ps(inside_);
    __m512 squares[4];
    HWY_UNROLL(4)
    for (int i = 0; i < 4; ++i) {
      const __m512 x = _mm512_mul_ps(t[i], inside);
      squares[i] = _mm512_mul_ps(x, x);
    }
    const __m512 largest = _mm512_max_ps(_mm512_max_ps(squares[0], squares[1]), _mm512_max_ps(squares[2], squares[3]));
    if (HWY_UNLIKELY(_mm512_cmp_ps_mask(largest, _mm512_set1_ps(1), _CMP_NLE_UQ) != 0)) return apply_any(t);
    multiply(t, squares);
  }

 private:
  static constexpr int kTerms = 8;

  HWY_INLINE void multiply(__m512 (&t)[4], const __m512 (&squares)[4]) const {
    __m512 sums[4];
    HWY_UNROLL(4)
    for (int i = 0; i < 4; ++i) sums[i] = _mm512_set1_ps(terms_[kTerms - 1]);
    HWY_UNROLL(8)
    for (int k = kTerms - 2; k >= 0; --k) {
      const __m512 term = _mm512_set1_ps(terms_[k]);
      HWY_UNROLL(4)
      for (int i = 0; i < 4; ++i) sums[i] = _mm512_fmadd_ps(sums[i], squares[i], term);
    }
    HWY_UNROLL(4)
    for (int i = 0; i < 4; ++i) t[i] = _mm512_mul_ps(t[i], sums[i]);
  }

  /// Any score, NaN included.
  HWY_NOINLINE void apply_any(__m512 (&t)[4]) const {
    const hn::Full512<float> d;
    const __m512 inside = _mm512_set1_ps(inside_), outside = _mm512_set1_ps(outside_);
    for (__m512& score : t) {
      const hn::Vec512<float> x{_mm512_mul_ps(score, inside)};
      score = _mm512_mul_ps(Tanh(d, x).raw, outside);
    }
  }

  float inside_ = 0, outside_ = 0;
  float terms_[kTerms] = {};
};

}  // namespace detail

}  // namespace heddle::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // AVX-512

#endif  // the toggling guard
