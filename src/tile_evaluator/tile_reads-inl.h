// Reads of captures, recompiled for each SIMD target. Every index is clamped into its axis before an address is formed,
// so no lane ever reads outside the tensor, whatever it holds; `at` then takes the fill where clamping changed an
// index.
#if defined(HEDDLE_BACKEND_CPU_TILE_READS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEDDLE_BACKEND_CPU_TILE_READS_INL_H_
#undef HEDDLE_BACKEND_CPU_TILE_READS_INL_H_
#else
#define HEDDLE_BACKEND_CPU_TILE_READS_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "tile_evaluator/tile_kernels.h"

HWY_BEFORE_NAMESPACE();
namespace heddle::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// An element type in memory: its bits, and its value as float or double, int32_t, or a boolean of 0 or -1. kVector
/// says whether Load() takes a vector of neighbours at once.
template <DType kDType, class Raw_>
struct StoredReal {
  using Raw = Raw_;
  template <class Out>
  static constexpr bool kVector = std::is_same_v<Raw, Out> || (kDType == DType::f32 && sizeof(Out) == 8) ||
                                  (kDType == DType::bf16 && sizeof(Out) == 4)
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2
                                  // Highway's portable conversion turns infinity into 65536.
                                  || (kDType == DType::f16 && sizeof(Out) == 4)
#endif
      ;
  template <class Out>
  static Out Value(Raw x) {
    if constexpr (kDType == DType::f64 || kDType == DType::f32) {
      return static_cast<Out>(x);
    } else {
      return static_cast<Out>(to_f32(x));
    }
  }
  template <class D>
  static HWY_INLINE hn::Vec<D> Load(D d, const std::byte* first) {
    if constexpr (std::is_same_v<Raw, hn::TFromD<D>>) {
      return hn::LoadU(d, reinterpret_cast<const Raw*>(first));
    } else if constexpr (kDType == DType::f32) {
      return hn::PromoteTo(d, hn::LoadU(hn::Rebind<float, D>(), reinterpret_cast<const float*>(first)));
    } else if constexpr (kDType == DType::f16) {
      const hn::Rebind<hwy::float16_t, D> dh;
      return hn::PromoteTo(d, hn::LoadU(dh, reinterpret_cast<const hwy::float16_t*>(first)));
    } else {
      const hn::Rebind<std::uint16_t, D> dh;
      const hn::RebindToUnsigned<D> du;
      const auto bits = hn::PromoteTo(du, hn::LoadU(dh, reinterpret_cast<const std::uint16_t*>(first)));
      return hn::BitCast(d, hn::ShiftLeft<16>(bits));
    }
  }
};
/// The low 32 bits of i64 and u64.
struct StoredI64 {
  using Raw = std::int64_t;
  template <class Out>
  static constexpr bool kVector = false;
  template <class Out>
  static Out Value(Raw x) {
    return static_cast<Out>(static_cast<std::uint32_t>(x));
  }
};
/// i16, i8, u16, u8.
template <class Raw_>
struct StoredNarrow {
  using Raw = Raw_;
  template <class Out>
  static constexpr bool kVector = true;
  template <class Out>
  static Out Value(Raw x) {
    return x;
  }
  template <class D>
  static HWY_INLINE hn::Vec<D> Load(D d, const std::byte* first) {
    return hn::PromoteTo(d, hn::LoadU(hn::Rebind<Raw, D>(), reinterpret_cast<const Raw*>(first)));
  }
};
/// i32 and u32.
struct StoredI32 {
  using Raw = std::int32_t;
  template <class Out>
  static constexpr bool kVector = true;
  template <class Out>
  static Out Value(Raw x) {
    return x;
  }
  template <class D>
  static HWY_INLINE hn::Vec<D> Load(D d, const std::byte* first) {
    return hn::LoadU(d, reinterpret_cast<const Raw*>(first));
  }
};
struct StoredBoolean {
  using Raw = std::uint8_t;
  template <class Out>
  static constexpr bool kVector = true;
  template <class Out>
  static Out Value(Raw x) {
    return x != 0 ? -1 : 0;
  }
  template <class D>
  static HWY_INLINE hn::Vec<D> Load(D d, const std::byte* first) {
    const hn::Rebind<std::uint8_t, D> db;
    return hn::VecFromMask(
        d, hn::Ne(hn::PromoteTo(d, hn::LoadU(db, reinterpret_cast<const std::uint8_t*>(first))), hn::Zero(d)));
  }
};

template <class Stored, class Out>
HWY_INLINE Out LoadOne(const std::byte* data, std::int64_t offset) {
  typename Stored::Raw raw;
  std::memcpy(&raw, data + offset * static_cast<std::int64_t>(sizeof raw), sizeof raw);
  return Stored::template Value<Out>(raw);
}

/// The index operand or fill at (r, c).
template <class T>
HWY_INLINE T OperandAt(const TileArguments& t, std::size_t i, int r, int c) {
  T x;
  std::memcpy(&x, t.in[i].base + r * t.in[i].row + c * t.in[i].column, sizeof x);
  return x;
}
template <class Out>
HWY_INLINE Out FillAt(const TileArguments& t, int r, int c) {
  return OperandAt<Out>(t, static_cast<std::size_t>(t.capture->rank), r, c);
}

struct ReadAt {
  std::int64_t offset = 0;  // elements
  bool inside = true;
  HWY_INLINE void Add(const BoundCapture& capture, std::size_t axis, std::int32_t index) {
    const std::int64_t clamped = std::clamp<std::int64_t>(index, 0, capture.extent[axis] - 1);
    inside = inside && clamped == index;
    offset += clamped * capture.stride[axis];
  }
};

/// The index of one axis at (r, c): wraps as i32 does where it grows along the columns.
HWY_INLINE std::int32_t IndexAt(const TileArguments& t, std::size_t axis, int r, int c) {
  const std::int32_t index = OperandAt<std::int32_t>(t, axis, r, c);
  if (static_cast<int>(axis) != t.column_axis) return index;
  return static_cast<std::int32_t>(static_cast<std::uint32_t>(index) + static_cast<std::uint32_t>(c));
}

/// Any capture, any indices: element by element with 64-bit offsets.
template <class Stored, class Out>
HWY_NOINLINE void ReadElements(const TileArguments& t, int r, int first, int last) {
  Out* out = reinterpret_cast<Out*>(t.out + r * t.out_row);
  for (int c = first; c < last; ++c) {
    ReadAt at;
    for (int axis = 0; axis < t.capture->rank; ++axis) {
      at.Add(*t.capture, static_cast<std::size_t>(axis), IndexAt(t, static_cast<std::size_t>(axis), r, c));
    }
    const bool taken = !t.has_fill || at.inside;
    out[c] = taken ? LoadOne<Stored, Out>(t.capture->data, at.offset) : FillAt<Out>(t, r, c);
  }
}

/// Rows of neighbours in memory: one axis' index grows with the column, with stride 1, the others stay.
template <class Stored, class Out>
void ReadAlongRows(const TileArguments& t) {
  const hn::ScalableTag<Out> d;
  const int lanes = static_cast<int>(hn::Lanes(d));
  const BoundCapture& capture = *t.capture;
  for (int r = 0; r < t.rows; ++r) {
    ReadAt at;
    for (int axis = 0; axis < capture.rank; ++axis) {
      if (axis == t.column_axis) continue;
      at.Add(capture, static_cast<std::size_t>(axis), IndexAt(t, static_cast<std::size_t>(axis), r, 0));
    }
    const std::int64_t start = IndexAt(t, static_cast<std::size_t>(t.column_axis), r, 0);
    const std::int64_t extent = capture.extent[static_cast<std::size_t>(t.column_axis)];
    int c = 0;
    if (start >= 0 && (at.inside || !t.has_fill)) {
      if constexpr (Stored::template kVector<Out>) {
        Out* out = reinterpret_cast<Out*>(t.out + r * t.out_row);
        constexpr std::int64_t kSize = sizeof(typename Stored::Raw);
        const std::byte* from = capture.data + (at.offset + start) * kSize;
        for (; c < t.used_columns && start + c + lanes <= extent; c += lanes) {
          hn::StoreU(Stored::Load(d, from + c * kSize), d, out + c);
        }
      }
    }
    ReadElements<Stored, Out>(t, r, c, t.used_columns);
  }
}

/// Any indices, offsets of 32 bits: vectors of offsets, gathered where the hardware can.
template <class Stored, class Out>
void ReadNarrow(const TileArguments& t) {
  constexpr bool kGathers = std::is_same_v<typename Stored::Raw, Out> && sizeof(Out) == 4;
  const hn::ScalableTag<std::int32_t> di;
  const hn::Rebind<std::conditional_t<kGathers, Out, float>, decltype(di)> d;
  const int lanes = static_cast<int>(hn::Lanes(di));
  const BoundCapture& capture = *t.capture;
  const auto rank = static_cast<std::size_t>(capture.rank);
  for (int r = 0; r < t.rows; ++r) {
    ReadAt fixed;
    for (std::size_t axis = 0; axis < rank; ++axis) {
      const bool varies = t.in[axis].column != 0 || static_cast<int>(axis) == t.column_axis;
      if (!varies) fixed.Add(capture, axis, OperandAt<std::int32_t>(t, axis, r, 0));
    }
    Out* out = reinterpret_cast<Out*>(t.out + r * t.out_row);
    for (int c = 0; c < t.columns; c += lanes) {
      auto offset = hn::Set(di, static_cast<std::int32_t>(fixed.offset));
      auto inside = hn::Eq(hn::Set(di, fixed.inside ? 1 : 0), hn::Set(di, 1));
      for (std::size_t axis = 0; axis < rank; ++axis) {
        hn::Vec<decltype(di)> index;
        if (static_cast<int>(axis) == t.column_axis) {
          index = hn::Add(hn::Set(di, OperandAt<std::int32_t>(t, axis, r, 0)), hn::Iota(di, c));
        } else if (t.in[axis].column != 0) {
          const std::byte* address = t.in[axis].base + r * t.in[axis].row + c * t.in[axis].column;
          index = hn::LoadU(di, reinterpret_cast<const std::int32_t*>(address));
        } else {
          continue;
        }
        const std::int64_t last = std::min<std::int64_t>(capture.extent[axis] - 1, std::numeric_limits<int>::max());
        const auto clamped = hn::Min(hn::Max(index, hn::Zero(di)), hn::Set(di, static_cast<std::int32_t>(last)));
        inside = hn::And(inside, hn::Eq(clamped, index));
        offset = hn::Add(offset, hn::Mul(clamped, hn::Set(di, static_cast<std::int32_t>(capture.stride[axis]))));
      }
      if constexpr (kGathers) {
        auto value = hn::GatherIndex(d, reinterpret_cast<const Out*>(capture.data), offset);
        if (t.has_fill) {
          const TileOperand& fill = t.in[rank];
          const auto* address = reinterpret_cast<const Out*>(fill.base + r * fill.row + c * fill.column);
          const auto fills = fill.column != 0 ? hn::LoadU(d, address) : hn::Set(d, *address);
          value = hn::IfThenElse(hn::RebindMask(d, inside), value, fills);
        }
        hn::StoreU(value, d, out + c);
      } else {
        HWY_ALIGN std::int32_t offsets[hn::MaxLanes(di)], insides[hn::MaxLanes(di)];
        hn::Store(offset, di, offsets);
        hn::Store(hn::VecFromMask(di, inside), di, insides);
        for (int i = 0; i < lanes; ++i) {
          const bool taken = !t.has_fill || insides[i] != 0;
          out[c + i] = taken ? LoadOne<Stored, Out>(capture.data, offsets[i]) : FillAt<Out>(t, r, c + i);
        }
      }
    }
  }
}

template <class Stored, class Out>
void ReadStored(const TileArguments& t) {
  const int axis = t.column_axis;
  if (axis >= 0 && t.capture->stride[static_cast<std::size_t>(axis)] == 1) {
    ReadAlongRows<Stored, Out>(t);
  } else if (t.capture->narrow) {
    ReadNarrow<Stored, Out>(t);
  } else {
    for (int r = 0; r < t.rows; ++r) ReadElements<Stored, Out>(t, r, 0, t.columns);
  }
}

/// A tensor without elements: the fill, or zero.
template <class Out>
void ReadEmpty(const TileArguments& t) {
  for (int r = 0; r < t.rows; ++r) {
    Out* out = reinterpret_cast<Out*>(t.out + r * t.out_row);
    for (int c = 0; c < t.columns; ++c) out[c] = t.has_fill ? FillAt<Out>(t, r, c) : Out{0};
  }
}

template <class Real>
void ReadReal(const TileArguments& t) {
  if (t.capture->empty) return ReadEmpty<Real>(t);
  switch (t.capture->dtype) {
    case DType::f64:
      return ReadStored<StoredReal<DType::f64, double>, Real>(t);
    case DType::f32:
      return ReadStored<StoredReal<DType::f32, float>, Real>(t);
    case DType::f16:
      return ReadStored<StoredReal<DType::f16, f16>, Real>(t);
    case DType::bf16:
      return ReadStored<StoredReal<DType::bf16, bf16>, Real>(t);
    case DType::e4m3:
      return ReadStored<StoredReal<DType::e4m3, e4m3>, Real>(t);
    default:
      return ReadStored<StoredReal<DType::e5m2, e5m2>, Real>(t);
  }
}
inline void ReadInt(const TileArguments& t) {
  if (t.capture->empty) return ReadEmpty<std::int32_t>(t);
  switch (t.capture->dtype) {
    case DType::i64:
    case DType::u64:
      return ReadStored<StoredI64, std::int32_t>(t);
    case DType::i16:
      return ReadStored<StoredNarrow<std::int16_t>, std::int32_t>(t);
    case DType::u16:
      return ReadStored<StoredNarrow<std::uint16_t>, std::int32_t>(t);
    case DType::i8:
      return ReadStored<StoredNarrow<std::int8_t>, std::int32_t>(t);
    case DType::u8:
      return ReadStored<StoredNarrow<std::uint8_t>, std::int32_t>(t);
    default:
      return ReadStored<StoredI32, std::int32_t>(t);
  }
}
inline void ReadBoolean(const TileArguments& t) {
  if (t.capture->empty) return ReadEmpty<std::int32_t>(t);
  return ReadStored<StoredBoolean, std::int32_t>(t);
}

/// By form.
template <class Real>
std::array<TileKernel, 3> ReadKernels() {
  return {ReadReal<Real>, ReadInt, ReadBoolean};
}

}  // namespace HWY_NAMESPACE
}  // namespace heddle::cpu
HWY_AFTER_NAMESPACE();

#endif  // the toggling guard
