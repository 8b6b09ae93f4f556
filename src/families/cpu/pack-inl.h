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

#include "families/cpu/keys_to_columns-inl.h"
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

namespace detail {

template <class T>
inline constexpr DType kDType = DType::f32;
template <>
inline constexpr DType kDType<double> = DType::f64;

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

namespace detail {

/// Whether rows can be read where they stand.
template <class T>
bool IsPlain(const ConstRows& rows) {
  return rows.dtype == kDType<T> && rows.pages.table == nullptr;
}

/// Keys [first, first + count) of PackKeys, count at most kColumnUnit, to the columns of a panel from `panel` on, and
/// zeros behind them to a whole kColumnUnit.
template <class T>
void PackThroughStaging(const PackKeys<T>& keys, std::int64_t first, std::int64_t count, T* panel) {
  for (std::int64_t dim = 0; dim < keys.dim; dim += plan::kPanel) {
    const std::int64_t dims = std::min(plan::kPanel, keys.dim - dim);
    for (std::int64_t key = 0; key < kColumnUnit; ++key) {
      T* row = keys.staging + key * plan::kPanel;
      if (key < count) {
        LoadRow(keys.from, keys.rest, keys.dim, first + key, dim, dims, row);
      } else if (dim == 0) {
        std::fill_n(row, dims, T(0));
      }
    }
    Transpose(keys.staging, plan::kPanel, dims, panel + dim * plan::kPanel, plan::kPanel);
  }
}

}  // namespace detail

/// Columns of the last panel are zeros behind the keys to a whole kColumnUnit, more than which no product reads.
template <class T>
void Pack(const PackKeys<T>& keys) {
  const bool plain = detail::IsPlain<T>(keys.from) && keys.rest.columns == 0;
  for (std::int64_t first = keys.begin; first < keys.end; first += kColumnUnit) {
    T* panel = keys.panels + first / plan::kPanel * plan::kPanel * keys.dim + first % plan::kPanel;
    const std::int64_t count = std::min(kColumnUnit, keys.end - first);
    if (plain && count == kColumnUnit) {
      const T* rows = static_cast<const T*>(keys.from.data) + first * keys.from.stride;
      detail::Transpose(rows, keys.from.stride, keys.dim, panel, plan::kPanel);
    } else {
      detail::PackThroughStaging(keys, first, count, panel);
    }
  }
}

namespace detail {

/// A row of kPanel columns to `to`. Lanes of the result are NaN where an element is NaN or infinite, else 0.
template <class T>
HWY_INLINE auto CopyPanelRow(const T* from, T* to) {
  const hn::ScalableTag<T> d;
  const auto zero = hn::Zero(d);
  auto sum = zero;
  for (std::int64_t i = 0; i < plan::kPanel; i += static_cast<std::int64_t>(hn::Lanes(d))) {
    const auto x = hn::LoadU(d, from + i);
    hn::Store(x, d, to + i);
    sum = hn::MulAdd(x, zero, sum);
  }
  return sum;
}

}  // namespace detail

template <class T>
void Pack(const PackValues<T>& values) {
  const hn::ScalableTag<T> d;
  const bool plain = detail::IsPlain<T>(values.from);
  for (std::int64_t first = values.begin; first < values.end; first += plan::kPanel) {
    auto sum = hn::Zero(d);
    for (std::int64_t dim = 0; dim < values.dim; dim += plan::kPanel) {
      const std::int64_t dims = std::min(plan::kPanel, values.dim - dim);
      for (std::int64_t key = first; key < std::min(first + plan::kPanel, values.end); ++key) {
        T* row = values.panels + (dim * values.keys + key * plan::kPanel);
        if (plain && dims == plan::kPanel) {
          sum = hn::Add(
              sum, detail::CopyPanelRow(static_cast<const T*>(values.from.data) + values.from.offset(key) + dim, row));
          continue;
        }
        LoadRow(values.from, key, dim, dims, row);
        std::fill(row + dims, row + plan::kPanel, T(0));
        sum = hn::Add(sum, detail::CopyPanelRow(row, row));
      }
    }
    values.flags[first / plan::kPanel] = hn::AllFalse(d, hn::IsNaN(sum)) ? 0 : 1;
  }
}

}  // namespace heddle::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // the toggling guard
