// Rows to columns, in registers.

// A guard that toggles, as Highway's per-target headers have.
#if defined(HEDDLE_BACKEND_CPU_KEYS_TO_COLUMNS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEDDLE_BACKEND_CPU_KEYS_TO_COLUMNS_INL_H_
#undef HEDDLE_BACKEND_CPU_KEYS_TO_COLUMNS_INL_H_
#else
#define HEDDLE_BACKEND_CPU_KEYS_TO_COLUMNS_INL_H_
#endif

#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>

#include "families/cpu/target_data.h"

HWY_BEFORE_NAMESPACE();
namespace heddle::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

namespace detail {

// Blocks are squares of kSide elements, of 16 bytes a side or of a vector.
#if HWY_TARGET == HWY_SCALAR
template <class T>
inline constexpr std::int64_t kSide = 1;

template <class T>
HWY_INLINE void TransposeBlock(const T* from, std::int64_t /*stride*/, T* to, std::int64_t /*to_stride*/) {
  *to = *from;
}
#else
template <class T>
inline constexpr std::int64_t kSide = 16 / sizeof(T);

/// columns[j]: in each 16 bytes, one of the rows' columns there, the j-th.
template <class D, class V>
HWY_INLINE void TransposeWithin(D d, const V (&rows)[4], V (&columns)[4]) {
  const V even_low = hn::InterleaveLower(d, rows[0], rows[2]), odd_low = hn::InterleaveLower(d, rows[1], rows[3]);
  const V even_high = hn::InterleaveUpper(d, rows[0], rows[2]), odd_high = hn::InterleaveUpper(d, rows[1], rows[3]);
  columns[0] = hn::InterleaveLower(d, even_low, odd_low);
  columns[1] = hn::InterleaveUpper(d, even_low, odd_low);
  columns[2] = hn::InterleaveLower(d, even_high, odd_high);
  columns[3] = hn::InterleaveUpper(d, even_high, odd_high);
}
template <class D, class V>
HWY_INLINE void TransposeWithin(D d, const V (&rows)[2], V (&columns)[2]) {
  columns[0] = hn::InterleaveLower(d, rows[0], rows[1]);
  columns[1] = hn::InterleaveUpper(d, rows[0], rows[1]);
}

template <class T>
HWY_INLINE void TransposeBlock(const T* from, std::int64_t stride, T* to, std::int64_t to_stride) {
  const hn::Full128<T> d;
  hn::Vec<decltype(d)> rows[kSide<T>], columns[kSide<T>];
  HWY_UNROLL(4)
  for (int i = 0; i < kSide<T>; ++i) rows[i] = hn::LoadU(d, from + i * stride);
  TransposeWithin(d, rows, columns);
  HWY_UNROLL(4)
  for (int j = 0; j < kSide<T>; ++j) hn::Store(columns[j], d, to + j * to_stride);
}
#endif

#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2
template <class T>
inline constexpr std::int64_t kWideSide = static_cast<std::int64_t>(hn::MaxLanes(hn::ScalableTag<T>()));

/// Column L of the rows' parts: their 16 bytes number L, one behind the other, to `to` + L * `step`.
template <class D, class V, class T>
HWY_INLINE void StoreColumns(D d, const V& a, const V& b, T* to, std::int64_t step) {
  hn::Store(hn::ConcatLowerLower(d, b, a), d, to);
  hn::Store(hn::ConcatUpperUpper(d, b, a), d, to + step);
}
template <class D, class V, class T>
HWY_INLINE void StoreColumns(D d, const V (&part)[2], T* to, std::int64_t step) {
  StoreColumns(d, part[0], part[1], to, step);
}
#if HWY_TARGET <= HWY_AVX3
template <class D, class V, class T>
HWY_INLINE void StoreColumns(D d, const V (&part)[4], T* to, std::int64_t step) {
  V even[2], odd[2];
  HWY_UNROLL(2)
  for (int i = 0; i < 2; ++i) {
    const V &a = part[2 * i], &b = part[2 * i + 1];
    even[i] = hn::OddEvenBlocks(hn::SwapAdjacentBlocks(b), a);
    odd[i] = hn::OddEvenBlocks(b, hn::SwapAdjacentBlocks(a));
  }
  StoreColumns(d, even[0], even[1], to, 2 * step);
  StoreColumns(d, odd[0], odd[1], to + step, 2 * step);
}
#endif

/// A square of a vector's lanes.
template <class T>
HWY_INLINE void TransposeWideBlock(const T* from, std::int64_t stride, T* to, std::int64_t to_stride) {
  constexpr int kRows = static_cast<int>(kSide<T>), kParts = static_cast<int>(kWideSide<T>) / kRows;
  const hn::ScalableTag<T> d;
  using V = hn::Vec<decltype(d)>;
  V part[kRows][kParts];  // of column j in each 16 bytes, from kRows rows
  HWY_UNROLL(4)
  for (int g = 0; g < kParts; ++g) {
    V rows[kRows], columns[kRows];
    HWY_UNROLL(4)
    for (int i = 0; i < kRows; ++i) rows[i] = hn::LoadU(d, from + (kRows * g + i) * stride);
    TransposeWithin(d, rows, columns);
    HWY_UNROLL(4)
    for (int j = 0; j < kRows; ++j) part[j][g] = columns[j];
  }
  HWY_UNROLL(4)
  for (int j = 0; j < kRows; ++j) StoreColumns(d, part[j], to + j * to_stride, kRows * to_stride);
}
#else
template <class T>
inline constexpr std::int64_t kWideSide = kSide<T>;

template <class T>
HWY_INLINE void TransposeWideBlock(const T* from, std::int64_t stride, T* to, std::int64_t to_stride) {
  TransposeBlock(from, stride, to, to_stride);
}
#endif

/// kColumnUnit rows of `dims` columns, `stride` apart, to [dims][to_stride]. `to`: at a multiple of 64 bytes, as
/// to_stride is.
template <class T>
void Transpose(const T* from, std::int64_t stride, std::int64_t dims, T* to, std::int64_t to_stride) {
  std::int64_t dim = 0;
  for (; dim + kWideSide<T> <= dims; dim += kWideSide<T>) {
    for (std::int64_t key = 0; key < kColumnUnit; key += kWideSide<T>) {
      TransposeWideBlock(from + key * stride + dim, stride, to + dim * to_stride + key, to_stride);
    }
  }
  for (; dim + kSide<T> <= dims; dim += kSide<T>) {
    for (std::int64_t key = 0; key < kColumnUnit; key += kSide<T>) {
      TransposeBlock(from + key * stride + dim, stride, to + dim * to_stride + key, to_stride);
    }
  }
  for (; dim < dims; ++dim) {
    for (std::int64_t key = 0; key < kColumnUnit; ++key) to[dim * to_stride + key] = from[key * stride + dim];
  }
}

}  // namespace detail

}  // namespace heddle::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // the toggling guard
