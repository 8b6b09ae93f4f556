// Keys and values to panels of plan::kPanel columns, converted to the type of the computation on the way. A key becomes
// a column of its panel (the product reads one dimension of 64 keys at a time), a value stays a row.

// A guard that toggles, as Highway's per-target headers have.
#if defined(HEDDLE_BACKEND_CPU_PACK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEDDLE_BACKEND_CPU_PACK_INL_H_
#undef HEDDLE_BACKEND_CPU_PACK_INL_H_
#else
#define HEDDLE_BACKEND_CPU_PACK_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "families/cpu/storage_vectors-inl.h"
#include "families/cpu/target_data.h"

HWY_BEFORE_NAMESPACE();
namespace heddle::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// Elements [first, first + count) of a row, widened.
template <class T>
void LoadRow(const ConstRows& rows, std::int64_t row, std::int64_t first, std::int64_t count, T* to) {
  const std::int64_t offset = rows.offset(row) + first;
  switch (rows.dtype) {
    case DType::f64:
      return WidenRow(static_cast<const double*>(rows.data) + offset, count, to);
    case DType::f16:
      return WidenRow(static_cast<const f16*>(rows.data) + offset, count, to);
    case DType::bf16:
      return WidenRow(static_cast<const bf16*>(rows.data) + offset, count, to);
    case DType::e4m3:
      return WidenRow(static_cast<const e4m3*>(rows.data) + offset, count, to);
    case DType::e5m2:
      return WidenRow(static_cast<const e5m2*>(rows.data) + offset, count, to);
    default:
      return WidenRow(static_cast<const float*>(rows.data) + offset, count, to);
  }
}

/// Likewise, of rows of `dim` columns, the last of which stand in `rest`.
template <class T>
void LoadRow(const ConstRows& rows, const RestOfRows& rest, std::int64_t dim, std::int64_t row, std::int64_t first,
             std::int64_t count, T* to) {
  const std::int64_t cut = dim - rest.columns;
  const std::int64_t before = std::clamp<std::int64_t>(cut - first, 0, count);
  if (before > 0) LoadRow(rows, row, first, before, to);
  if (before < count) LoadRow(rest.rows, row, first + before - cut, count - before, to + before);
}

/// `count` elements rounded to their storage, `first` elements after the start of a row.
template <class T>
void StoreRow(const T* from, std::int64_t count, const Rows& rows, std::int64_t row, std::int64_t first) {
  const std::int64_t offset = row * rows.stride + first;
  switch (rows.dtype) {
    case DType::f64:
      return RoundRow(from, count, static_cast<double*>(rows.data) + offset);
    case DType::f16:
      return RoundRow(from, count, static_cast<f16*>(rows.data) + offset);
    case DType::bf16:
      return RoundRow(from, count, static_cast<bf16*>(rows.data) + offset);
    case DType::e4m3:
      return RoundRow(from, count, static_cast<e4m3*>(rows.data) + offset);
    case DType::e5m2:
      return RoundRow(from, count, static_cast<e5m2*>(rows.data) + offset);
    default:
      return RoundRow(from, count, static_cast<float*>(rows.data) + offset);
  }
}

/// The rows without the first `count`.
inline ConstRows SkipRows(const ConstRows& rows, std::int64_t count) {
  ConstRows rest = rows;
  if (rows.pages.table != nullptr) {
    rest.pages.first += count;
  } else {
    rest.data = static_cast<const std::byte*>(rows.data) + count * rows.stride * size_of(rows.dtype);
  }
  return rest;
}

inline RestOfRows SkipRows(const RestOfRows& rest, std::int64_t count) {
  return {rest.columns > 0 ? SkipRows(rest.rows, count) : ConstRows{}, rest.columns};
}

namespace detail {

template <class T>
inline constexpr DType kDType = DType::f32;
template <>
inline constexpr DType kDType<double> = DType::f64;

// Square blocks of 16 bytes a side are transposed in registers: kBlock elements.
#if HWY_TARGET == HWY_SCALAR
template <class T>
inline constexpr std::int64_t kBlock = 1;

template <class T>
HWY_INLINE void TransposeBlock(const T* from, std::int64_t /*stride*/, T* to, std::int64_t /*to_stride*/) {
  *to = *from;
}
#else
template <class T>
inline constexpr std::int64_t kBlock = 16 / sizeof(T);

HWY_INLINE void TransposeBlock(const float* from, std::int64_t stride, float* to, std::int64_t to_stride) {
  const hn::Full128<float> d;
  const auto r0 = hn::LoadU(d, from), r1 = hn::LoadU(d, from + stride);
  const auto r2 = hn::LoadU(d, from + 2 * stride), r3 = hn::LoadU(d, from + 3 * stride);
  const auto even_low = hn::InterleaveLower(d, r0, r2), odd_low = hn::InterleaveLower(d, r1, r3);
  const auto even_high = hn::InterleaveUpper(d, r0, r2), odd_high = hn::InterleaveUpper(d, r1, r3);
  hn::Store(hn::InterleaveLower(d, even_low, odd_low), d, to);
  hn::Store(hn::InterleaveUpper(d, even_low, odd_low), d, to + to_stride);
  hn::Store(hn::InterleaveLower(d, even_high, odd_high), d, to + 2 * to_stride);
  hn::Store(hn::InterleaveUpper(d, even_high, odd_high), d, to + 3 * to_stride);
}

HWY_INLINE void TransposeBlock(const double* from, std::int64_t stride, double* to, std::int64_t to_stride) {
  const hn::Full128<double> d;
  const auto r0 = hn::LoadU(d, from), r1 = hn::LoadU(d, from + stride);
  hn::Store(hn::InterleaveLower(d, r0, r1), d, to);
  hn::Store(hn::InterleaveUpper(d, r0, r1), d, to + to_stride);
}
#endif

/// from [kPanel keys][stride] to [dims][kPanel keys].
template <class T>
void Transpose(const T* from, std::int64_t stride, std::int64_t dims, T* to) {
  constexpr std::int64_t kStep = kBlock<T>;
  std::int64_t dim = 0;
  for (; dim + kStep <= dims; dim += kStep) {
    for (std::int64_t key = 0; key < plan::kPanel; key += kStep) {
      TransposeBlock(from + key * stride + dim, stride, to + dim * plan::kPanel + key, plan::kPanel);
    }
  }
  for (; dim < dims; ++dim) {
    for (std::int64_t key = 0; key < plan::kPanel; ++key) to[dim * plan::kPanel + key] = from[key * stride + dim];
  }
}

/// True when one of `count` elements (a multiple of the vector) is NaN or infinite: 0 x is 0 for the others.
template <class T>
bool HasNonFinite(const T* row, std::int64_t count) {
  const hn::ScalableTag<T> d;
  const auto zero = hn::Zero(d);
  auto sum = zero;
  for (std::int64_t i = 0; i < count; i += static_cast<std::int64_t>(hn::Lanes(d))) {
    sum = hn::MulAdd(hn::Load(d, row + i), zero, sum);
  }
  return !hn::AllFalse(d, hn::IsNaN(sum));
}

}  // namespace detail

template <class T>
void Pack(const PackKeys<T>& keys) {
  for (std::int64_t first = keys.begin; first < keys.end; first += plan::kPanel) {
    const std::int64_t count = std::min(plan::kPanel, keys.end - first);
    T* panel = keys.panels + first * keys.dim;
    if (count == plan::kPanel && keys.from.dtype == detail::kDType<T> && keys.from.pages.table == nullptr &&
        keys.rest.columns == 0) {
      const T* rows = static_cast<const T*>(keys.from.data) + first * keys.from.stride;
      detail::Transpose(rows, keys.from.stride, keys.dim, panel);
      continue;
    }
    for (std::int64_t key = count; key < plan::kPanel; ++key) {
      std::fill_n(keys.staging + key * plan::kPanel, std::min(plan::kPanel, keys.dim), T(0));
    }
    for (std::int64_t dim = 0; dim < keys.dim; dim += plan::kPanel) {
      const std::int64_t dims = std::min(plan::kPanel, keys.dim - dim);
      for (std::int64_t key = 0; key < count; ++key) {
        LoadRow(keys.from, keys.rest, keys.dim, first + key, dim, dims, keys.staging + key * plan::kPanel);
      }
      detail::Transpose(keys.staging, plan::kPanel, dims, panel + dim * plan::kPanel);
    }
  }
}

template <class T>
void Pack(const PackValues<T>& values) {
  for (std::int64_t first = values.begin; first < values.end; first += plan::kPanel) {
    bool non_finite = false;
    for (std::int64_t key = first; key < std::min(first + plan::kPanel, values.end); ++key) {
      for (std::int64_t dim = 0; dim < values.dim; dim += plan::kPanel) {
        const std::int64_t dims = std::min(plan::kPanel, values.dim - dim);
        T* row = values.panels + (dim * values.keys + key * plan::kPanel);
        LoadRow(values.from, key, dim, dims, row);
        std::fill(row + dims, row + plan::kPanel, T(0));
        non_finite = detail::HasNonFinite(row, plan::kPanel) || non_finite;
      }
    }
    values.flags[first / plan::kPanel] = non_finite ? 1 : 0;
  }
}

}  // namespace heddle::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // the toggling guard
