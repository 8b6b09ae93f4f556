// Elementary functions on Highway vectors of float or double, recompiled for each SIMD target. The largest errors stand
// in src/expr/ops.def and are measured by tests/tile_evaluator/tile_math_test.cc. All keep NaN, take infinities as C99
// says, and round results below the normal range once (gradual underflow).
//
// Highway's own math library is not used: its Exp(NaN) is 0, its Log(0) is -105. Exp2, Exp, Tanh and Sigmoid are ours
// because they are hot; the others are SLEEF's (sleef-inl.h).

// A guard that toggles, as Highway's per-target headers have.
#if defined(HEDDLE_BACKEND_CPU_MATH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEDDLE_BACKEND_CPU_MATH_INL_H_
#undef HEDDLE_BACKEND_CPU_MATH_INL_H_
#else
#define HEDDLE_BACKEND_CPU_MATH_INL_H_
#endif

#include <hwy/highway.h>

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "tile_evaluator/sleef-inl.h"
#include "tile_evaluator/tanh_table.h"

HWY_BEFORE_NAMESPACE();

namespace heddle::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

namespace detail {

/// `winner` is the minimum or maximum of x and y, which on x86 already is NaN when y is.
template <class V>
HWY_INLINE V KeepNan(V x, V y, V winner) {
#if !HWY_ARCH_X86 || HWY_TARGET > HWY_AVX2
  winner = hn::IfThenElse(hn::IsNaN(y), y, winner);
#else
  (void)y;
#endif
  return hn::IfThenElse(hn::IsNaN(x), x, winner);
}

}  // namespace detail

/// The smaller and the larger; NaN when either is NaN. (hn::Min and hn::Max of x86 keep a NaN of the second argument
/// only.)
template <class D, class V = hn::Vec<D>>
HWY_INLINE V MinNan(D /*d*/, V x, V y) {
  return detail::KeepNan(x, y, hn::Min(x, y));
}
template <class D, class V = hn::Vec<D>>
HWY_INLINE V MaxNan(D /*d*/, V x, V y) {
  return detail::KeepNan(x, y, hn::Max(x, y));
}

namespace detail {

template <class T>
struct ExpConstants;

template <>
struct ExpConstants<float> {
  static constexpr float kMagic = 0x1.8p23f;  // x + kMagic - kMagic rounds x to an integer
  static constexpr float kLog2E = 0x1.715476p0f;
  // ln 2 in two parts; n * kLn2High is exact for every exponent n.
  static constexpr float kLn2High = 0x1.63p-1f;
  static constexpr float kLn2Low = -0x1.bd0106p-13f;
  static constexpr float kExpZero = -104.0f, kExpHigh = 89.0f;  // beyond: 0 and inf
  static constexpr float kExp2Zero = -150.0f, kExp2High = 160.0f;
  static constexpr float kExp2Normal = -126.0f;  // results are normal numbers from here on
  static constexpr float kTanhOne = 9.0f;        // tanh is 1 from here on; at 9.02 it rounds to 1
  // (e^r - 1 - r) / r^2 on |r| <= ln 2 / 2, relative error of e^r 3.1e-9.
  static constexpr float kExp[] = {0x1.fffffcp-2f, 0x1.555492p-3f, 0x1.5558f2p-5f, 0x1.1239d4p-7f, 0x1.6a244cp-10f};
  // (2^r - 1) / r on |r| <= 1/2, relative error of 2^r 2.0e-9.
  static constexpr float kExp2[] = {0x1.62e43p-1f,  0x1.ebfbdcp-3f,  0x1.c6aee8p-5f,
                                    0x1.3b2d4cp-7f, 0x1.5f3e52p-10f, 0x1.41fbbcp-13f};
  // kExp2 for 0 <= r <= 1.
  static constexpr float kExp2Above[] = {0x1.62e42cp-1f, 0x1.ebfd58p-3f,  0x1.c68912p-5f,
                                         0x1.3d0b92p-7f, 0x1.46d64ep-10f, 0x1.c54174p-13f};
};

template <>
struct ExpConstants<double> {
  static constexpr double kMagic = 0x1.8p52;
  static constexpr double kLog2E = 0x1.71547652b82fep0;
  static constexpr double kLn2 = 0x1.62e42fefa39efp-1;
  static constexpr double kLn2High = 0x1.62e42feep-1;
  static constexpr double kLn2Low = 0x1.a39ef35793c76p-33;
  static constexpr double kExpZero = -746.0, kExpHigh = 710.0;
  static constexpr double kExp2Zero = -1075.0, kExp2High = 1100.0;
  static constexpr double kExp2Normal = -1022.0;
  static constexpr double kTanhOne = 20.0;
  // Taylor: 1/2! .. 1/13!, relative error of e^r 4e-18.
  static constexpr double kExp[] = {1.0 / 2,        1.0 / 6,          1.0 / 24,         1.0 / 120,
                                    1.0 / 720,      1.0 / 5040,       1.0 / 40320,      1.0 / 362880,
                                    1.0 / 3628800., 1.0 / 39916800.0, 1.0 / 479001600., 1.0 / 6227020800.};
};

/// c[0] + c[1] x + ... by Horner's rule.
template <class D, class V, class T, std::size_t kTerms>
HWY_INLINE V Polynomial(D d, V x, const T (&c)[kTerms]) {
  V sum = hn::Set(d, c[kTerms - 1]);
  [&]<std::size_t... i>(std::index_sequence<i...>) HWY_ATTR {
    ((sum = hn::MulAdd(sum, x, hn::Set(d, c[kTerms - 2 - i]))), ...);
  }
  (std::make_index_sequence<kTerms - 1>());
  return sum;
}

/// The smaller of x and `high`; NaN stays.
template <class D, class V, class T>
HWY_INLINE V Limit(D d, V x, T high) {
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2
  return hn::Min(hn::Set(d, high), x);
#else
  return hn::IfThenElse(hn::Gt(x, hn::Set(d, high)), hn::Set(d, high), x);
#endif
}

/// The nearest integer; |x| < 2^22 (double: 2^51).
template <class D, class V>
HWY_INLINE V Round(D d, V x) {
  const V magic = hn::Set(d, ExpConstants<hn::TFromD<D>>::kMagic);
  return hn::Sub(hn::Add(x, magic), magic);
}

/// 2^n for an integer n in the normal range.
template <class D, class V>
HWY_INLINE V PowerOfTwo(D d, V n) {
  using T = hn::TFromD<D>;
  const hn::RebindToSigned<D> di;
  constexpr int kMantissa = hwy::MantissaBits<T>();
  // Adding the magic number leaves n in the low bits of the mantissa, from where it moves to the exponent.
  const V biased = hn::Add(n, hn::Set(d, ExpConstants<T>::kMagic + static_cast<T>(hwy::MaxExponentField<T>() >> 1)));
  return hn::BitCast(d, hn::ShiftLeft<kMantissa>(hn::BitCast(di, biased)));
}

/// p * 2^n for an integer n of up to twice the normal range, rounded once: for p in [1/2, 2] only the last product
/// rounds.
template <class D, class V>
HWY_INLINE V Scale(D d, V p, V n) {
  const V half = Round(d, hn::Mul(n, hn::Set(d, hn::TFromD<D>(0.5))));
  return hn::Mul(hn::Mul(p, PowerOfTwo(d, half)), PowerOfTwo(d, hn::Sub(n, half)));
}

/// 2^r for |r| <= 1/2.
template <class D, class V>
HWY_INLINE V Exp2Reduced(D d, V r) {
  using T = hn::TFromD<D>;
  const V one = hn::Set(d, T(1));
  if constexpr (sizeof(T) == 4) {
    return hn::MulAdd(Polynomial(d, r, ExpConstants<T>::kExp2), r, one);
  } else {
    const V y = hn::Mul(r, hn::Set(d, ExpConstants<T>::kLn2));
    return hn::Add(hn::MulAdd(hn::Mul(y, y), Polynomial(d, y, ExpConstants<T>::kExp), y), one);
  }
}

#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
/// p * 2^floor(n) where x >= low (or NaN), else 0 and no time lost: the processor takes some 200 cycles for a vector in
/// which a result leaves the normal range.
HWY_INLINE hn::Vec512<float> ScaleFrom(float low, hn::Vec512<float> x, hn::Vec512<float> p, hn::Vec512<float> n) {
  const __mmask16 taken = _mm512_cmp_ps_mask(x.raw, _mm512_set1_ps(low), _CMP_NLT_UQ);
  return hn::Vec512<float>{_mm512_maskz_scalef_ps(taken, p.raw, n.raw)};
}
HWY_INLINE hn::Vec512<double> ScaleFrom(double low, hn::Vec512<double> x, hn::Vec512<double> p, hn::Vec512<double> n) {
  const __mmask8 taken = _mm512_cmp_pd_mask(x.raw, _mm512_set1_pd(low), _CMP_NLT_UQ);
  return hn::Vec512<double>{_mm512_maskz_scalef_pd(taken, p.raw, n.raw)};
}
/// 2^x from x = low on. floor(x) needs no operation of its own, as scalef takes it.
HWY_INLINE hn::Vec512<float> Exp2From(float low, hn::Vec512<float> x) {
  const hn::Full512<float> d;
  const hn::Vec512<float> r{_mm512_reduce_ps(x.raw, 0x09)};  // x - floor(x); 0 for infinities
  return ScaleFrom(low, x, hn::MulAdd(Polynomial(d, r, ExpConstants<float>::kExp2Above), r, hn::Set(d, 1.0f)), x);
}
HWY_INLINE hn::Vec512<double> Exp2From(double low, hn::Vec512<double> x) {
  const hn::Vec512<double> r{_mm512_reduce_pd(x.raw, 0x08)};  // x minus the nearest integer; 0 for infinities
  return ScaleFrom(low, x, Exp2Reduced(hn::Full512<double>(), r), hn::Sub(x, r));
}
/// x / y within 0.6 ulp for a y in [1, 2], in a third of a division's time: the approximate reciprocal's 14 bits, and a
/// correction of the quotient.
HWY_INLINE hn::Vec512<float> DivNear(hn::Vec512<float> x, hn::Vec512<float> y) {
  const hn::Vec512<float> reciprocal{_mm512_rcp14_ps(y.raw)};
  const hn::Vec512<float> quotient = hn::Mul(x, reciprocal);
  return hn::MulAdd(hn::NegMulAdd(quotient, y, x), reciprocal, quotient);
}
HWY_INLINE hn::Vec512<double> DivNear(hn::Vec512<double> x, hn::Vec512<double> y) { return hn::Div(x, y); }

/// tanh by look-up (tanh_table.h): half the time of the way by exponentials. The entries that a number past the last
/// piece finds do not matter.
HWY_INLINE hn::Vec512<float> TanhByPieces(hn::Vec512<float> x) {
  const hn::Full512<float> d;
  const hn::Full512<std::int32_t> di;
  const auto size = hn::Abs(x);
  const auto piece = hn::Max(hn::ShiftRight<TanhTable::kShift>(hn::BitCast(di, size)), hn::Set(di, TanhTable::kFirst));
  const auto look_up = [d, piece](const std::array<float, 32>& entries) HWY_ATTR {
    const auto low = hn::Load(d, entries.data()), high = hn::Load(d, entries.data() + 16);
    return hn::Vec512<float>{_mm512_permutex2var_ps(low.raw, piece.raw, high.raw)};
  };
  const auto rest = hn::Sub(size, look_up(kTanhTable.origin));
  auto sum = look_up(kTanhTable.coefficient[TanhTable::kTerms - 1]);
  [&]<std::size_t... i>(std::index_sequence<i...>) HWY_ATTR {
    ((sum = hn::MulAdd(sum, rest, look_up(kTanhTable.coefficient[TanhTable::kTerms - 2 - i]))), ...);
  }
  (std::make_index_sequence<TanhTable::kTerms - 1>());
  const auto one = hn::Ge(size, hn::Set(d, ExpConstants<float>::kTanhOne));
  return hn::CopySignToAbs(hn::IfThenElse(one, hn::Set(d, 1.0f), sum), x);
}
#endif

/// x = n ln 2 + r with an integer n; returns e^r - 1, accurate near 0 too.
template <class D, class V>
HWY_INLINE V Expm1Reduced(D d, V x, V& n) {
  using C = ExpConstants<hn::TFromD<D>>;
  const V magic = hn::Set(d, C::kMagic);
  n = hn::Sub(hn::MulAdd(x, hn::Set(d, C::kLog2E), magic), magic);  // x / ln 2, rounded
  const V r = hn::NegMulAdd(n, hn::Set(d, C::kLn2Low), hn::NegMulAdd(n, hn::Set(d, C::kLn2High), x));
  return hn::MulAdd(hn::Mul(r, r), Polynomial(d, r, C::kExp), r);
}

/// 2^x from x = low on, below it 0.
template <class D, class V>
HWY_INLINE V Exp2FromLow(D d, V x, hn::TFromD<D> low) {
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
  if constexpr (sizeof(V) == 64) return Exp2From(low, x);
#endif
  const auto vanishes = hn::Lt(x, hn::Set(d, low));
  const V limited = Limit(d, hn::IfThenZeroElse(vanishes, x), ExpConstants<hn::TFromD<D>>::kExp2High);
  const V n = Round(d, limited);
  return hn::IfThenZeroElse(vanishes, Scale(d, Exp2Reduced(d, hn::Sub(limited, n)), n));
}

}  // namespace detail

template <class D, class V = hn::Vec<D>>
HWY_INLINE V Exp2(D d, V x) {
  return detail::Exp2FromLow(d, x, detail::ExpConstants<hn::TFromD<D>>::kExp2Zero);
}

/// exp2 that gives 0 for results below the normal range. Weights are added to a 1 and do not need such results, and
/// each vector with one costs as much as a hundred others.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Exp2NoSubnormals(D d, V x) {
  return detail::Exp2FromLow(d, x, detail::ExpConstants<hn::TFromD<D>>::kExp2Normal);
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE V Exp(D d, V x) {
  using T = hn::TFromD<D>;
  using C = detail::ExpConstants<T>;
  const V one = hn::Set(d, T(1));
  V n;
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
  if constexpr (sizeof(V) == 64) {
    const V p = hn::Add(detail::Expm1Reduced(d, detail::Limit(d, x, C::kExpHigh), n), one);
    return detail::ScaleFrom(C::kExpZero, x, p, n);
  }
#endif
  const auto vanishes = hn::Lt(x, hn::Set(d, C::kExpZero));
  const V limited = detail::Limit(d, hn::IfThenZeroElse(vanishes, x), C::kExpHigh);
  const V p = hn::Add(detail::Expm1Reduced(d, limited, n), one);
  return hn::IfThenZeroElse(vanishes, detail::Scale(d, p, n));
}

/// (e^2|x| - 1) / (e^2|x| + 1), by e^z - 1 so that small arguments keep their digits. Where it is 1 it has to be
/// exactly 1: derivatives multiply 1 - tanh^2 by numbers of any size.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Tanh(D d, V x) {
  using T = hn::TFromD<D>;
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
  if constexpr (sizeof(V) == 64 && sizeof(T) == 4) return detail::TanhByPieces(x);
#endif
  const V one = hn::Set(d, T(1)), size = hn::Abs(x);
  const V z = detail::Limit(d, size, detail::ExpConstants<T>::kTanhOne);
  V n;
  const V q = detail::Expm1Reduced(d, hn::Add(z, z), n);
  const V power = detail::PowerOfTwo(d, n);
  const V e = hn::MulAdd(power, q, hn::Sub(power, one));
  const V below = hn::Div(e, hn::Add(e, hn::Set(d, T(2))));
  const auto reached = hn::Ge(size, hn::Set(d, detail::ExpConstants<T>::kTanhOne));
  return hn::CopySign(hn::IfThenElse(reached, one, below), x);
}

/// 1 / (1 + e^-x), by e^-|x| so that nothing overflows.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Sigmoid(D d, V x) {
  const V one = hn::Set(d, hn::TFromD<D>(1));
  const V e = Exp(d, hn::Neg(hn::Abs(x)));
  const V above = hn::IfThenElse(hn::Lt(x, hn::Zero(d)), e, one), below = hn::Add(one, e);
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
  if constexpr (sizeof(V) == 64) return detail::DivNear(above, below);
#endif
  return hn::Div(above, below);
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE V Rsqrt(D d, V x) {
  return hn::Div(hn::Set(d, hn::TFromD<D>(1)), hn::Sqrt(x));
}

/// Whole numbers, with the sign of x: some targets give 0 for -0.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Floor(D /*d*/, V x) {
  return hn::CopySign(hn::Floor(x), x);
}
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Ceil(D /*d*/, V x) {
  return hn::CopySign(hn::Ceil(x), x);
}
template <class D, class V = hn::Vec<D>>
HWY_INLINE V RoundEven(D /*d*/, V x) {
  return hn::CopySign(hn::Round(x), x);
}
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Trunc(D /*d*/, V x) {
  return hn::CopySign(hn::Trunc(x), x);
}

/// -1 or 1; zeros and NaN are themselves.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Sign(D d, V x) {
  const V one = hn::Set(d, hn::TFromD<D>(1)), zero = hn::Zero(d);
  return hn::IfThenElse(hn::Gt(x, zero), one, hn::IfThenElse(hn::Lt(x, zero), hn::Neg(one), x));
}

}  // namespace HWY_NAMESPACE
}  // namespace heddle::cpu
HWY_AFTER_NAMESPACE();

#endif  // the toggling guard
