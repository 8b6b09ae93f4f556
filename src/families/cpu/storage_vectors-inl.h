// Storage types to f32 vectors and back, recompiled for each SIMD target. Widening is exact; rounding is to nearest
// even, once, with NaN kept: Highway's own bf16 demotion truncates and turns some NaN into infinity.

// A guard that toggles, as Highway's per-target headers have.
#if defined(HEDDLE_BACKEND_CPU_CONVERT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEDDLE_BACKEND_CPU_CONVERT_INL_H_
#undef HEDDLE_BACKEND_CPU_CONVERT_INL_H_
#else
#define HEDDLE_BACKEND_CPU_CONVERT_INL_H_
#endif

#include <hwy/highway.h>

#include <bit>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "base/element.h"
#include "base/small_float.h"
#include "heddle/dtype.h"

HWY_BEFORE_NAMESPACE();
namespace heddle::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

namespace detail {

template <class Storage>
inline constexpr base::SmallFormat kFormat{};
template <>
inline constexpr base::SmallFormat kFormat<f16> = base::kF16;
template <>
inline constexpr base::SmallFormat kFormat<e4m3> = base::kE4m3;
template <>
inline constexpr base::SmallFormat kFormat<e5m2> = base::kE5m2;

template <class Storage>
using Bits = decltype(Storage::bits);

/// The bits of Lanes(d) elements in 32-bit lanes.
template <class Storage, class D>
HWY_INLINE hn::VFromD<hn::RebindToUnsigned<D>> LoadBits(D, const Storage* from) {
  const hn::RebindToUnsigned<D> du;
  const hn::Rebind<Bits<Storage>, D> narrow;
  return hn::PromoteTo(du, hn::LoadU(narrow, reinterpret_cast<const Bits<Storage>*>(from)));
}

template <class Storage, class D>
HWY_INLINE void StoreBits(hn::VFromD<hn::RebindToUnsigned<D>> bits, D, Storage* to) {
  const hn::RebindToSigned<D> di;
  const hn::Rebind<Bits<Storage>, D> narrow;
  hn::StoreU(hn::DemoteTo(narrow, hn::BitCast(di, bits)), narrow, reinterpret_cast<Bits<Storage>*>(to));
}

/// base::widen on lanes.
template <base::SmallFormat F, class D, class VU>
HWY_INLINE hn::VFromD<D> Widen(D d, VU bits) {
  const hn::RebindToUnsigned<D> du;
  const hn::RebindToSigned<D> di;
  constexpr int kShift = 23 - F.mantissa_bits;
  constexpr std::uint32_t kRebias = static_cast<std::uint32_t>(127 - F.bias()) << 23;
  constexpr std::uint32_t kQuantum = static_cast<std::uint32_t>(128 - F.bias() - F.mantissa_bits) << 23;
  const auto magnitude = hn::And(bits, hn::Set(du, F.sign_bit() - 1u));
  const auto sign = hn::ShiftLeft<31 - F.exponent_bits - F.mantissa_bits>(hn::Xor(bits, magnitude));
  const auto shifted = hn::ShiftLeft<kShift>(magnitude);
  const auto normal = hn::Add(shifted, hn::Set(du, kRebias));
  const auto subnormal =
      hn::Mul(hn::ConvertTo(d, hn::BitCast(di, magnitude)), hn::Set(d, std::bit_cast<float>(kQuantum)));
  auto value =
      hn::IfThenElse(hn::Lt(magnitude, hn::Set(du, 1u << F.mantissa_bits)), hn::BitCast(du, subnormal), normal);
  if constexpr (F.has_infinity) {
    value =
        hn::IfThenElse(hn::Lt(magnitude, hn::Set(du, F.infinity())), value, hn::Or(shifted, hn::Set(du, 0x7f800000u)));
  } else {
    value = hn::IfThenElse(hn::Eq(magnitude, hn::Set(du, F.quiet_nan())), hn::Set(du, 0x7fc00000u), value);
  }
  return hn::BitCast(d, hn::Or(value, sign));
}

/// base::narrow on lanes, for the formats with fewer exponent bits than f32.
template <base::SmallFormat F, class D>
HWY_INLINE hn::VFromD<hn::RebindToUnsigned<D>> Narrow(D d, hn::VFromD<D> x) {
  const hn::RebindToUnsigned<D> du;
  constexpr int kShift = 23 - F.mantissa_bits;
  constexpr std::uint32_t kSmallestNormal = static_cast<std::uint32_t>(128 - F.bias()) << 23;
  constexpr std::uint32_t kRebias = static_cast<std::uint32_t>(127 - F.bias()) << F.mantissa_bits;
  // The number whose last place is the format's subnormal step: adding it rounds there, to even.
  constexpr std::uint32_t kMagic = static_cast<std::uint32_t>(127 + 24 - F.bias() - F.mantissa_bits) << 23;
  const auto magnitude = hn::BitCast(du, hn::Abs(x));
  const auto sign = hn::ShiftRight<31 - F.exponent_bits - F.mantissa_bits>(hn::Xor(hn::BitCast(du, x), magnitude));
  const auto odd = hn::And(hn::ShiftRight<kShift>(magnitude), hn::Set(du, 1u));
  const auto carried = hn::Add(magnitude, hn::Add(odd, hn::Set(du, (1u << (kShift - 1)) - 1u)));
  const auto normal =
      hn::Min(hn::Sub(hn::ShiftRight<kShift>(carried), hn::Set(du, kRebias)), hn::Set(du, F.overflow()));
  const auto magic = hn::Set(du, kMagic);
  const auto subnormal = hn::Sub(hn::BitCast(du, hn::Add(hn::Abs(x), hn::BitCast(d, magic))), magic);
  auto value = hn::IfThenElse(hn::Lt(magnitude, hn::Set(du, kSmallestNormal)), subnormal, normal);
  value = hn::IfThenElse(hn::Gt(magnitude, hn::Set(du, 0x7f800000u)), hn::Set(du, F.quiet_nan()), value);
  return hn::Or(value, sign);
}

template <class D>
HWY_INLINE hn::VFromD<hn::RebindToUnsigned<D>> NarrowBf16(D d, hn::VFromD<D> x) {
  const hn::RebindToUnsigned<D> du;
  const auto bits = hn::BitCast(du, x);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1u));
  const auto rounded = hn::Add(bits, hn::Add(odd, hn::Set(du, 0x7fffu)));
  const auto quiet = hn::Or(bits, hn::Set(du, 0x00400000u));
  const auto is_nan = hn::RebindMask(du, hn::IsNaN(x));  // Ne(x, x) is ordered: false on NaN
  (void)d;
  return hn::ShiftRight<16>(hn::IfThenElse(is_nan, quiet, rounded));
}

}  // namespace detail

/// Lanes(d) elements as f32, those of f64 as they are. `from` need not be aligned.
template <class D>
HWY_INLINE hn::VFromD<D> LoadReal(D d, const float* from) {
  return hn::LoadU(d, from);
}
template <class D>
HWY_INLINE hn::VFromD<D> LoadReal(D d, const double* from) {
  return hn::LoadU(d, from);
}
template <class D>
HWY_INLINE hn::VFromD<D> LoadReal(D d, const bf16* from) {
  return hn::BitCast(d, hn::ShiftLeft<16>(detail::LoadBits(d, from)));
}
template <class D>
HWY_INLINE hn::VFromD<D> LoadReal(D d, const f16* from) {
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2
  const hn::Rebind<hwy::float16_t, D> narrow;
  return hn::PromoteTo(d, hn::LoadU(narrow, reinterpret_cast<const hwy::float16_t*>(from)));
#else
  return detail::Widen<base::kF16>(d, detail::LoadBits(d, from));
#endif
}
template <class D>
HWY_INLINE hn::VFromD<D> LoadReal(D d, const e4m3* from) {
  return detail::Widen<base::kE4m3>(d, detail::LoadBits(d, from));
}
template <class D>
HWY_INLINE hn::VFromD<D> LoadReal(D d, const e5m2* from) {
  return detail::Widen<base::kE5m2>(d, detail::LoadBits(d, from));
}

/// Rounds Lanes(d) elements. `to` need not be aligned.
template <class D>
HWY_INLINE void StoreReal(hn::VFromD<D> x, D d, float* to) {
  hn::StoreU(x, d, to);
}
template <class D>
HWY_INLINE void StoreReal(hn::VFromD<D> x, D d, bf16* to) {
  detail::StoreBits(detail::NarrowBf16(d, x), d, to);
}
template <class D, class Storage>
HWY_INLINE void StoreReal(hn::VFromD<D> x, D d, Storage* to) {
  detail::StoreBits(detail::Narrow<detail::kFormat<Storage>>(d, x), d, to);
}

/// `count` contiguous elements to f32. Neither end need be aligned, and nothing outside is touched.
template <class Storage>
void WidenRow(const Storage* from, std::int64_t count, float* to) {
  if constexpr (std::is_same_v<Storage, float>) {
    std::memcpy(to, from, static_cast<std::size_t>(count) * sizeof(float));
  } else if constexpr (std::is_same_v<Storage, double>) {
    for (std::int64_t i = 0; i < count; ++i) to[i] = static_cast<float>(base::load_raw<double>(from, i));
  } else {
    const hn::ScalableTag<float> d;
    const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(d));
    std::int64_t i = 0;
    for (; i + lanes <= count; i += lanes) hn::StoreU(LoadReal(d, from + i), d, to + i);
    if (i < count) {
      Storage last[hn::MaxLanes(hn::ScalableTag<float>())] = {};
      float wide[hn::MaxLanes(hn::ScalableTag<float>())];
      std::memcpy(last, from + i, static_cast<std::size_t>(count - i) * sizeof(Storage));
      hn::StoreU(LoadReal(d, last), d, wide);
      std::memcpy(to + i, wide, static_cast<std::size_t>(count - i) * sizeof(float));
    }
  }
}
template <class Storage>
void WidenRow(const Storage* from, std::int64_t count, double* to) {
  for (std::int64_t i = 0; i < count; ++i) to[i] = base::decode(base::load_raw<Storage>(from, i));
}

/// The inverse, each element rounded once.
template <class Storage>
void RoundRow(const float* from, std::int64_t count, Storage* to) {
  if constexpr (std::is_same_v<Storage, float>) {
    std::memcpy(to, from, static_cast<std::size_t>(count) * sizeof(float));
  } else if constexpr (std::is_same_v<Storage, double>) {
    for (std::int64_t i = 0; i < count; ++i) base::store_raw(to, i, static_cast<double>(from[i]));
  } else {
    const hn::ScalableTag<float> d;
    const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(d));
    std::int64_t i = 0;
    for (; i + lanes <= count; i += lanes) StoreReal(hn::LoadU(d, from + i), d, to + i);
    if (i < count) {
      float last[hn::MaxLanes(hn::ScalableTag<float>())] = {};
      Storage rounded[hn::MaxLanes(hn::ScalableTag<float>())];
      std::memcpy(last, from + i, static_cast<std::size_t>(count - i) * sizeof(float));
      StoreReal(hn::LoadU(d, last), d, rounded);
      std::memcpy(to + i, rounded, static_cast<std::size_t>(count - i) * sizeof(Storage));
    }
  }
}
template <class Storage>
void RoundRow(const double* from, std::int64_t count, Storage* to) {
  for (std::int64_t i = 0; i < count; ++i) base::store_raw(to, i, base::encode<Storage>(from[i]));
}

}  // namespace heddle::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // the toggling guard
