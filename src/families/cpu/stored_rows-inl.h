// Rows of keys and values as they are stored, converted to f32 in registers; f64 stays f64. Two vectors come from one
// load, in the order that costs least: for some types the even elements and then the odd ones. Sums over a row do not
// depend on that order if both factors have it, and what has an element a lane is put in order at its end.

// A guard that toggles, as Highway's per-target headers have.
#if defined(HEDDLE_CPU_STORED_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEDDLE_CPU_STORED_ROWS_INL_H_
#undef HEDDLE_CPU_STORED_ROWS_INL_H_
#else
#define HEDDLE_CPU_STORED_ROWS_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "families/cpu/storage_vectors-inl.h"
#include "families/cpu/target_data.h"

HWY_BEFORE_NAMESPACE();
namespace heddle::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

namespace detail {

/// The type that a storage type is computed in.
template <class Storage>
using RealOf = std::conditional_t<std::is_same_v<Storage, double>, double, float>;
template <class Storage>
using RealTag = hn::ScalableTag<RealOf<Storage>>;

/// f(std::type_identity<Storage>) for the storage of a problem that is computed in T.
template <class T, class F>
void WithStorage([[maybe_unused]] DType dtype, F&& f) {
  if constexpr (std::is_same_v<T, double>) {
    f(std::type_identity<double>{});
  } else {
    switch (dtype) {
      case DType::f16:
        return f(std::type_identity<f16>{});
      case DType::bf16:
        return f(std::type_identity<bf16>{});
      case DType::e4m3:
        return f(std::type_identity<e4m3>{});
      case DType::e5m2:
        return f(std::type_identity<e5m2>{});
      default:
        return f(std::type_identity<float>{});
    }
  }
}

/// Targets with an instruction from f16 to f32. There 8-bit numbers go through f16: their bits are an f16's upper ones.
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2
inline constexpr bool kConvertsF16 = true;
#else
inline constexpr bool kConvertsF16 = false;
#endif

template <class Storage>
inline constexpr bool kThroughF16 = kConvertsF16 && sizeof(Storage) == 1;
/// Pairs of vectors are even elements, then odd ones.
template <class Storage>
inline constexpr bool kEvenOdd = std::is_same_v<Storage, bf16> || kThroughF16<Storage>;
/// The factor that loaded numbers still need: e4m3 exponents are read with the bias of f16.
template <class Storage>
inline constexpr float kStoredScale = kThroughF16<Storage>&& std::is_same_v<Storage, e4m3> ? 256.0F : 1.0F;

#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2
/// The f16 bits of the lower and of the upper byte of each lane; e4m3: times kStoredScale. A NaN of e4m3 becomes a
/// number, which LostNan or HasNan finds.
template <class Storage, class V>
HWY_INLINE V LowerBytes(V words) {
  const hn::DFromV<V> du;
  const hn::RebindToSigned<decltype(du)> di;
  const auto shifted = hn::ShiftLeft<8>(words);
  if constexpr (std::is_same_v<Storage, e5m2>) return shifted;
  return hn::And(hn::BitCast(du, hn::ShiftRight<1>(hn::BitCast(di, shifted))), hn::Set(du, 0xbf80));
}
template <class Storage, class V>
HWY_INLINE V UpperBytes(V words) {
  const hn::DFromV<V> du;
  const hn::RebindToSigned<decltype(du)> di;
  if constexpr (std::is_same_v<Storage, e5m2>) return hn::And(words, hn::Set(du, 0xff00));
  return hn::And(hn::BitCast(du, hn::ShiftRight<1>(hn::BitCast(di, words))), hn::Set(du, 0xbf80));
}
template <class D, class V>
HWY_INLINE hn::VFromD<D> FromF16Bits(D d, V bits) {
  return hn::PromoteTo(d, hn::BitCast(hn::Rebind<hwy::float16_t, D>(), bits));
}
#endif

/// Remembers whether loads met a NaN that the conversion does not keep.
template <class Storage, class D>
struct LostNan {
  bool found() const { return false; }
};
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2
template <class D>
struct LostNan<e4m3, D> {
  using DU = hn::Repartition<std::uint8_t, D>;
  using DHalf = hn::Half<DU>;
  hn::VFromD<DU> most;  // bytes, sign set: 0xff is NaN
  hn::VFromD<DHalf> most_of_half;

  // Compilers make no constructor for a target by themselves.
  HWY_INLINE LostNan() : most(hn::Zero(DU())), most_of_half(hn::Zero(DHalf())) {}
  template <class V>
  HWY_INLINE void see(V words) {
    constexpr bool kWhole = sizeof(V) == sizeof(hn::VFromD<DU>);
    const std::conditional_t<kWhole, DU, DHalf> du;
    const auto bytes = hn::Or(hn::BitCast(du, words), hn::Set(du, 0x80));
    if constexpr (kWhole) {
      most = hn::Max(most, bytes);
    } else {
      most_of_half = hn::Max(most_of_half, bytes);
    }
  }
  HWY_INLINE bool found() const {
    return !hn::AllFalse(DU(), hn::Eq(most, hn::Set(DU(), 0xff))) ||
           !hn::AllFalse(DHalf(), hn::Eq(most_of_half, hn::Set(DHalf(), 0xff)));
  }
};
#endif

/// 2 Lanes(d) elements in the storage's order.
template <class Storage, class D>
HWY_INLINE void LoadPair(D d, const Storage* from, hn::VFromD<D>& a, hn::VFromD<D>& b,
                         [[maybe_unused]] LostNan<Storage, D>& lost) {
  if constexpr (std::is_same_v<Storage, bf16>) {
    const hn::RebindToUnsigned<D> du;
    const auto words = hn::LoadU(du, reinterpret_cast<const std::uint32_t*>(from));
    a = hn::BitCast(d, hn::ShiftLeft<16>(words));
    b = hn::BitCast(d, hn::And(words, hn::Set(du, 0xffff0000U)));
    return;
  }
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2
  if constexpr (kThroughF16<Storage>) {
    const hn::Rebind<std::uint16_t, D> du;
    const auto words = hn::LoadU(du, reinterpret_cast<const std::uint16_t*>(from));
    if constexpr (std::is_same_v<Storage, e4m3>) lost.see(words);
    a = FromF16Bits(d, LowerBytes<Storage>(words));
    b = FromF16Bits(d, UpperBytes<Storage>(words));
    return;
  }
#endif
  if constexpr (!kEvenOdd<Storage>) {
    a = LoadReal(d, from);
    b = LoadReal(d, from + hn::Lanes(d));
  }
}

/// 4 Lanes(d) elements, as two pairs.
template <class Storage, class D>
HWY_INLINE void LoadPairs(D d, const Storage* from, hn::VFromD<D>* x, LostNan<Storage, D>& lost) {
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2
  if constexpr (kThroughF16<Storage>) {
    const hn::Repartition<std::uint16_t, D> du;
    const hn::Half<decltype(du)> dh;
    const auto words = hn::LoadU(du, reinterpret_cast<const std::uint16_t*>(from));
    if constexpr (std::is_same_v<Storage, e4m3>) lost.see(words);
    const auto lower = LowerBytes<Storage>(words), upper = UpperBytes<Storage>(words);
    x[0] = FromF16Bits(d, hn::LowerHalf(dh, lower));
    x[1] = FromF16Bits(d, hn::LowerHalf(dh, upper));
    x[2] = FromF16Bits(d, hn::UpperHalf(dh, lower));
    x[3] = FromF16Bits(d, hn::UpperHalf(dh, upper));
    return;
  }
#endif
  LoadPair(d, from, x[0], x[1], lost);
  LoadPair(d, from + 2 * hn::Lanes(d), x[2], x[3], lost);
}

/// Two blocks of 128 bits in the storage's order, the first in each block of a and the second in each of b: 8 elements,
/// of f64 4. For the types that have pairs, even elements and then odd ones.
template <class Storage, class D>
HWY_INLINE void LoadQuads(D d, const Storage* from, hn::VFromD<D>& a, hn::VFromD<D>& b,
                          [[maybe_unused]] LostNan<Storage, D>& lost) {
  constexpr std::size_t kBlock = 16 / sizeof(hn::TFromD<D>);
  if constexpr (hn::MaxLanes(d) <= kBlock) {
    LoadPair(d, from, a, b, lost);
  } else if constexpr (std::is_same_v<Storage, hn::TFromD<D>>) {
    a = hn::LoadDup128(d, from);
    b = hn::LoadDup128(d, from + kBlock);
  } else if constexpr (std::is_same_v<Storage, bf16>) {
    const hn::RebindToUnsigned<D> du;
    const auto words = hn::LoadDup128(du, reinterpret_cast<const std::uint32_t*>(from));
    a = hn::BitCast(d, hn::ShiftLeft<16>(words));
    b = hn::BitCast(d, hn::And(words, hn::Set(du, 0xffff0000U)));
  } else {
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2
    const hn::Rebind<std::uint16_t, D> du;
    const auto four_words = [&](const void* bytes) {
      const hn::Repartition<std::uint64_t, decltype(du)> wide;
      std::uint64_t words;
      std::memcpy(&words, bytes, sizeof(words));
      return hn::BitCast(du, hn::Set(wide, words));
    };
    if constexpr (std::is_same_v<Storage, f16>) {
      a = FromF16Bits(d, four_words(from));
      b = FromF16Bits(d, four_words(from + 4));
    } else {
      const auto words = four_words(from);
      if constexpr (std::is_same_v<Storage, e4m3>) lost.see(words);
      a = FromF16Bits(d, LowerBytes<Storage>(words));
      b = FromF16Bits(d, UpperBytes<Storage>(words));
    }
#endif
  }
}

/// Lanes(d) elements in their own order, with no scale left to apply; NaN as above.
template <class Storage, class D>
HWY_INLINE hn::VFromD<D> LoadInOrder(D d, const Storage* from) {
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2
  if constexpr (kThroughF16<Storage>) {
    const hn::Rebind<std::uint8_t, D> narrow;
    const auto words =
        hn::PromoteTo(hn::Rebind<std::uint16_t, D>(), hn::LoadU(narrow, reinterpret_cast<const std::uint8_t*>(from)));
    const auto x = FromF16Bits(d, LowerBytes<Storage>(words));
    return std::is_same_v<Storage, e4m3> ? hn::Mul(x, hn::Set(d, kStoredScale<Storage>)) : x;
  }
#endif
  if constexpr (!kThroughF16<Storage>) return LoadReal(d, from);
}

/// True when one of e4m3's elements is NaN, which the conversions through f16 do not keep. Rows [first, last) of
/// `count` elements.
template <class RowOf>
bool HasNan(RowOf&& row_of, std::int64_t first, std::int64_t last, std::int64_t count) {
  bool any = false;
  std::int64_t tail = 0;
#if HWY_TARGET != HWY_SCALAR
  const hn::ScalableTag<std::uint8_t> d;
  const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(d));
  tail = count / lanes * lanes;
  const auto sign = hn::Set(d, 0x80);
  auto most = hn::Zero(d);
  for (std::int64_t row = first; row < last; ++row) {
    const auto* bytes = reinterpret_cast<const std::uint8_t*>(row_of(row));
    for (std::int64_t i = 0; i < tail; i += lanes) most = hn::Max(most, hn::Or(hn::LoadU(d, bytes + i), sign));
  }
  any = !hn::AllFalse(d, hn::Eq(most, hn::Set(d, 0xff)));
#endif
  for (std::int64_t row = first; row < last && tail < count; ++row) {
    for (std::int64_t i = tail; i < count; ++i) any = any || (row_of(row)[i].bits | 0x80) == 0xff;
  }
  return any;
}

/// One row of `count` elements as they are computed in, in their own order, and 0 up to `padded`, a multiple of
/// Lanes(d).
template <class Storage>
void StageRow(const Storage* from, std::int64_t count, std::int64_t padded, RealOf<Storage>* to) {
  const RealTag<Storage> d;
  const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(d));
  std::int64_t i = 0;
  for (; i + lanes <= count; i += lanes) hn::Store(LoadInOrder(d, from + i), d, to + i);
  if (i == padded) return;
  std::fill(to + i, to + padded, RealOf<Storage>(0));
  WidenRow(from + i, count - i, to + i);
}

/// A row of pairs of `lanes` even and odd elements each becomes one in its own order, or the other way round. count: a
/// multiple of a pair; `to` is another row.
template <class T>
void OrderRow(const T* from, std::int64_t count, std::int64_t lanes, bool to_stored, T* to) {
  const hn::ScalableTag<T> d;
  const bool whole = lanes == static_cast<std::int64_t>(hn::Lanes(d));  // vectors
  for (std::int64_t first = 0; whole && first < count; first += 2 * lanes) {
    hn::Vec<decltype(d)> even, odd;
    if (to_stored) {
      hn::LoadInterleaved2(d, from + first, even, odd);
      hn::StoreU(even, d, to + first);
      hn::StoreU(odd, d, to + first + lanes);
    } else {
      hn::StoreInterleaved2(hn::LoadU(d, from + first), hn::LoadU(d, from + first + lanes), d, to + first);
    }
  }
  if (whole) return;
  for (std::int64_t first = 0; first < count; first += 2 * lanes) {
    for (std::int64_t i = 0; i < lanes; ++i) {
      const std::int64_t stored[] = {first + i, first + lanes + i}, own[] = {first + 2 * i, first + 2 * i + 1};
      for (int odd = 0; odd < 2; ++odd) {
        to_stored ? to[stored[odd]] = from[own[odd]] : to[own[odd]] = from[stored[odd]];
      }
    }
  }
}

}  // namespace detail

}  // namespace heddle::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // the toggling guard
