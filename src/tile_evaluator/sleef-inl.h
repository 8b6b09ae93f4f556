// Elementary functions that SLEEF computes, recompiled for each SIMD target: a whole vector at a time on AVX2 and
// AVX-512, and lane by lane elsewhere (on Arm too: its vector library is not linked yet). tile_math-inl.h has the
// others.

// A guard that toggles, as Highway's per-target headers have.
#if defined(HEDDLE_BACKEND_CPU_SLEEF_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEDDLE_BACKEND_CPU_SLEEF_INL_H_
#undef HEDDLE_BACKEND_CPU_SLEEF_INL_H_
#else
#define HEDDLE_BACKEND_CPU_SLEEF_INL_H_
#endif

#include <hwy/highway.h>

#include <cmath>
#include <cstddef>

#include "tile_evaluator/sleef_functions.h"

HWY_BEFORE_NAMESPACE();

namespace heddle::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

namespace detail {

/// One lane after another.
template <class D, class V, class F>
HWY_INLINE V EachLane(D d, V x, V y, F&& f) {
  HWY_ALIGN hn::TFromD<D> xs[hn::MaxLanes(D())], ys[hn::MaxLanes(D())];
  hn::Store(x, d, xs);
  hn::Store(y, d, ys);
  for (std::size_t i = 0; i < hn::Lanes(d); ++i) xs[i] = f(xs[i], ys[i]);
  return hn::Load(d, xs);
}

// Each row becomes a struct SleefName: the function for scalars and for whole vectors, which CallSleef applies.
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2
#define HEDDLE_SLEEF_256(name, accuracy)                                                       \
  static HWY_INLINE __m256 Whole256(__m256 x) { return Sleef_##name##f8_##accuracy##avx2(x); } \
  static HWY_INLINE __m256d Whole256(__m256d x) { return Sleef_##name##d4_##accuracy##avx2(x); }
#else
#define HEDDLE_SLEEF_256(name, accuracy)
#endif
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
#define HEDDLE_SLEEF_512(name, accuracy)                                                           \
  static HWY_INLINE __m512 Whole512(__m512 x) { return Sleef_##name##f16_##accuracy##avx512f(x); } \
  static HWY_INLINE __m512d Whole512(__m512d x) { return Sleef_##name##d8_##accuracy##avx512f(x); }
#else
#define HEDDLE_SLEEF_512(name, accuracy)
#endif
#define HEDDLE_SLEEF(Name, name, accuracy)                                          \
  struct Sleef##Name {                                                              \
    static HWY_INLINE float One(float x) { return Sleef_##name##f_##accuracy(x); }  \
    static HWY_INLINE double One(double x) { return Sleef_##name##_##accuracy(x); } \
    HEDDLE_SLEEF_256(name, accuracy)                                                \
    HEDDLE_SLEEF_512(name, accuracy)                                                \
  };
#include "tile_evaluator/sleef_functions.def"
#undef HEDDLE_SLEEF_512
#undef HEDDLE_SLEEF_256

template <class F, class D, class V>
HWY_INLINE V CallSleef(D d, V x) {
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
  if constexpr (sizeof(V) == 64) return V{F::Whole512(x.raw)};
#endif
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2
  if constexpr (sizeof(V) == 32) return V{F::Whole256(x.raw)};
#endif
  return EachLane(d, x, x, [](auto lane, auto) { return F::One(lane); });
}

/// SLEEF's function, for every argument.
template <class F, class D, class V>
HWY_INLINE V EachArgument(F, D d, V x) {
  return CallSleef<F>(d, x);
}
/// From 2^60 on the 1 is lost in rounding. There log is called, because SLEEF's log1p is infinite for the largest
/// numbers.
template <class D, class V>
HWY_INLINE V EachArgument(SleefLog1p, D d, V x) {
  const auto large = hn::Gt(x, hn::Set(d, hn::TFromD<D>(0x1p60)));
  const V near = CallSleef<SleefLog1p>(d, hn::IfThenZeroElse(large, x));
  if (hn::AllFalse(d, large)) return near;
  return hn::IfThenElse(large, CallSleef<SleefLog>(d, x), near);
}

}  // namespace detail

#define HEDDLE_SLEEF(Name, name, accuracy)                    \
  template <class D, class V = hn::Vec<D>>                    \
  HWY_INLINE V Name(D d, V x) {                               \
    return detail::EachArgument(detail::Sleef##Name(), d, x); \
  }
#include "tile_evaluator/sleef_functions.def"

/// In double by the C library: SLEEF's pow is infinite for results in the last 2e-9 of the range.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Pow(D d, V x, V y) {
  if constexpr (sizeof(hn::TFromD<D>) == 8) {
    return detail::EachLane(d, x, y, [](double base, double power) { return std::pow(base, power); });
  } else {
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
    if constexpr (sizeof(V) == 64) return V{Sleef_powf16_u10avx512f(x.raw, y.raw)};
#endif
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2
    if constexpr (sizeof(V) == 32) return V{Sleef_powf8_u10avx2(x.raw, y.raw)};
#endif
    return detail::EachLane(d, x, y, Sleef_powf_u10);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace heddle::cpu
HWY_AFTER_NAMESPACE();

#endif  // the toggling guard
