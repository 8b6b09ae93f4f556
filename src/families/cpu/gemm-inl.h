// The micro-kernel: c = a b, or c = scale c + a b with one scale for each row, for a block of rows against a packed
// panel. It can multiply the result by one factor for each row. Queries are not multiplied by that factor beforehand,
// so that an exact sum of products stays exact (0 above all, which mods ask for).
//
// Both products of attention are this one: S = Q K^T (a: queries, b: a panel of keys) and O = scale O + P V (a:
// probabilities, b: a panel of values).
//
// Each element is one chain of fused multiply-adds in the order of the depth (separate multiplications and additions on
// targets without fused ones). So a row's result does not depend on the rows beside it. The chain starts at 0, and c
// joins at its end: a long sum is many short chains, whose rounding errors are those of small partial sums.

// A guard that toggles, as Highway's per-target headers have.
#if defined(HEDDLE_BACKEND_CPU_GEMM_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEDDLE_BACKEND_CPU_GEMM_INL_H_
#undef HEDDLE_BACKEND_CPU_GEMM_INL_H_
#else
#define HEDDLE_BACKEND_CPU_GEMM_INL_H_
#endif

#include <hwy/highway.h>

#include <cstdint>

#include "families/cpu/target_data.h"

HWY_BEFORE_NAMESPACE();
namespace heddle::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

namespace detail {

/// Vectors of a row that the micro-kernel holds: kRowGroup times as many accumulators, with room for b and a broadcast.
#if HWY_TARGET <= HWY_AVX3 || HWY_ARCH_ARM
inline constexpr int kBlockVectors = 4;
#else
inline constexpr int kBlockVectors = 2;
#endif

/// kRows x kVectors accumulators over the whole depth. Loops over arrays of vectors are unrolled here and only then do
/// the arrays become registers.
template <int kRows, int kVectors, ProductSide kSide, class T>
HWY_NOINLINE void MultiplyBlock(const Product<T>& p, std::int64_t row, std::int64_t column) {
  const hn::ScalableTag<T> d;
  using V = hn::Vec<hn::ScalableTag<T>>;
  const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const std::int64_t a_stride = p.a_stride;
  constexpr bool kInColumns = kSide == ProductSide::columns;
  const T* HWY_RESTRICT a = p.a + row * (kInColumns ? 1 : a_stride);
  const T* HWY_RESTRICT b = p.b + column;
  T* HWY_RESTRICT c = p.c + row * p.c_stride + column;

  V sum[kRows][kVectors];
  HWY_UNROLL(8)
  for (int i = 0; i < kRows; ++i) {
    HWY_UNROLL(8)
    for (int j = 0; j < kVectors; ++j) sum[i][j] = hn::Zero(d);
  }
  for (std::int64_t k = 0; k < p.depth; ++k, b += plan::kPanel) {
    V right[kVectors];
    HWY_UNROLL(8)
    for (int j = 0; j < kVectors; ++j) right[j] = hn::Load(d, b + j * lanes);
    HWY_UNROLL(8)
    for (int i = 0; i < kRows; ++i) {
      const V left = hn::Set(d, kInColumns ? a[k * a_stride + i] : a[i * a_stride + k]);
      HWY_UNROLL(8)
      for (int j = 0; j < kVectors; ++j) sum[i][j] = hn::MulAdd(left, right[j], sum[i][j]);
    }
  }
  if (p.scales != nullptr) {
    HWY_UNROLL(8)
    for (int i = 0; i < kRows; ++i) {
      const V scale = hn::Set(d, p.scales[row + i]);
      HWY_UNROLL(8)
      for (int j = 0; j < kVectors; ++j) {
        sum[i][j] = hn::MulAdd(scale, hn::Load(d, c + i * p.c_stride + j * lanes), sum[i][j]);
      }
    }
  }
  if (p.add) {
    HWY_UNROLL(8)
    for (int i = 0; i < kRows; ++i) {
      HWY_UNROLL(8)
      for (int j = 0; j < kVectors; ++j) {
        sum[i][j] = hn::Add(hn::Load(d, c + i * p.c_stride + j * lanes), sum[i][j]);
      }
    }
  }
  if (p.factors != nullptr) {
    HWY_UNROLL(8)
    for (int i = 0; i < kRows; ++i) {
      const V factor = hn::Set(d, p.factors[row + i]);
      HWY_UNROLL(8)
      for (int j = 0; j < kVectors; ++j) sum[i][j] = hn::Mul(factor, sum[i][j]);
    }
  }
  HWY_UNROLL(8)
  for (int i = 0; i < kRows; ++i) {
    HWY_UNROLL(8)
    for (int j = 0; j < kVectors; ++j) hn::Store(sum[i][j], d, c + i * p.c_stride + j * lanes);
  }
}

/// The rows in blocks of nearly one size of 5 to 8, whose accumulators hide the latency of a multiply-add although a
/// row has but one vector or two. Returns the rows that are left: at most 4.
template <int kVectors, ProductSide kSide, class T>
std::int64_t MultiplyTallBlocks(const Product<T>& p, std::int64_t column) {
  std::int64_t row = 0;
  for (std::int64_t blocks = (p.rows + 7) / 8; p.rows - row >= 5; --blocks) {
    const std::int64_t now = (p.rows - row + blocks - 1) / blocks;
    if (now == 8) {
      MultiplyBlock<8, kVectors, kSide>(p, row, column);
    } else if (now == 7) {
      MultiplyBlock<7, kVectors, kSide>(p, row, column);
    } else if (now == 6) {
      MultiplyBlock<6, kVectors, kSide>(p, row, column);
    } else {
      MultiplyBlock<5, kVectors, kSide>(p, row, column);
    }
    row += now;
  }
  return p.rows - row;
}

/// Puts as few rows as possible into blocks of fewer than kRowGroup - 1, whose accumulators do not hide the latency of
/// a multiply-add: 64 rows are 9 blocks of 6 and 2 of 5.
template <int kVectors, ProductSide kSide, class T>
void MultiplyColumns(const Product<T>& p, std::int64_t column) {
  constexpr std::int64_t kSmaller = plan::kRowGroup - 1;
  std::int64_t row = 0;
  if constexpr (kBlockVectors == 4 && kVectors == 1 && kSide == ProductSide::rows) {
    row = p.rows - MultiplyTallBlocks<kVectors, kSide>(p, column);
  } else {
    const std::int64_t smaller = (plan::kRowGroup - p.rows % plan::kRowGroup) % plan::kRowGroup;
    const std::int64_t even = p.rows >= smaller * kSmaller ? smaller : 0;
    for (; row + plan::kRowGroup <= p.rows - even * kSmaller; row += plan::kRowGroup) {
      MultiplyBlock<plan::kRowGroup, kVectors, kSide>(p, row, column);
    }
    for (std::int64_t i = 0; i < even; ++i, row += kSmaller) MultiplyBlock<kSmaller, kVectors, kSide>(p, row, column);
  }
  for (; row + 2 <= p.rows; row += 2) MultiplyBlock<2, kVectors, kSide>(p, row, column);
  if (row < p.rows) MultiplyBlock<1, kVectors, kSide>(p, row, column);
}

}  // namespace detail

namespace detail {

template <ProductSide kSide, class T>
void MultiplyFrom(const Product<T>& p) {
  const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(hn::ScalableTag<T>()));
  std::int64_t column = 0;
  for (; column + kBlockVectors * lanes <= p.columns; column += kBlockVectors * lanes) {
    MultiplyColumns<kBlockVectors, kSide>(p, column);
  }
  if constexpr (kBlockVectors == 4) {
    for (; column + 2 * lanes <= p.columns; column += 2 * lanes) MultiplyColumns<2, kSide>(p, column);
  }
  for (; column < p.columns; column += lanes) MultiplyColumns<1, kSide>(p, column);
}

}  // namespace detail

template <class T>
void Multiply(const Product<T>& p) {
  if (p.side == ProductSide::rows) {
    detail::MultiplyFrom<ProductSide::rows>(p);
  } else {
    detail::MultiplyFrom<ProductSide::columns>(p);
  }
}

}  // namespace heddle::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // the toggling guard
