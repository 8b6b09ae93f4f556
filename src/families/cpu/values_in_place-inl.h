// O = scale O + P V over values that are read where they stand, a row at a time: dimensions in lanes, as many rows of
// queries at once as registers hold.

// A guard that toggles, as Highway's per-target headers have.
#if defined(HEDDLE_CPU_VALUES_IN_PLACE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEDDLE_CPU_VALUES_IN_PLACE_INL_H_
#undef HEDDLE_CPU_VALUES_IN_PLACE_INL_H_
#else
#define HEDDLE_CPU_VALUES_IN_PLACE_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "families/cpu/row_addresses-inl.h"
#include "families/cpu/stored_rows-inl.h"
#include "families/cpu/target_data.h"

HWY_BEFORE_NAMESPACE();
namespace heddle::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

namespace detail {

/// The data of O = scale O + P V for columns [first, last) of a chunk.
template <class T>
struct ValueProduct {
  const T* p;  // [rows][kChunk]
  const RowAddresses* values;
  std::int64_t first, last, dim;
  const T* scales;  // [rows], or null: o is overwritten
  T stored_scale;
  T* o;  // [rows][o_stride], in the storage's order
  std::int64_t o_stride;
  T* sums;         // [rows][o_stride]: scratch, or null: the columns are one part
  bool* lost_nan;  // set if a value's NaN was read as a number
};

/// Some columns of a ValueProduct, whose values stay in L1 while all rows and dimensions pass over them.
struct ValuePart {
  std::int64_t first, last;
  std::int64_t lines;  // that each block of rows and dimensions fetches
};

/// Rows of a block, at most, and the vectors of each: sums take up to 24 of 32 registers, or 12 of 16.
inline constexpr std::int64_t kMostValueRows = kWideRegisters ? 8 : 6;
template <int kRows>
inline constexpr int kValueVectors = kWideRegisters ? (kRows <= 3   ? 8
                                                       : kRows <= 6 ? 4
                                                                    : 2)
                                                    : (kRows == 1   ? 8
                                                       : kRows <= 3 ? 4
                                                                    : 2);

/// Lines that a block of rows and dimensions fetches: in all, and with each column.
struct BlockLines {
  std::int64_t all, each;
};

/// kRows rows, kVectors vectors from dimension `dim` on: one chain a lane over the chunk's keys.
template <class Storage, int kRows, int kVectors>
HWY_NOINLINE void ValueBlock(const ValueProduct<RealOf<Storage>>& product, const ValuePart& part, std::int64_t row,
                             std::int64_t dim, const BlockLines& lines, Ahead& ahead) {
  const RealTag<Storage> d;
  using V = hn::Vec<RealTag<Storage>>;
  const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(d));
  constexpr int kLoad = kThroughF16<Storage> && !kWideRegisters && kVectors % 4 == 0 ? 4 : 2;  // vectors of one load
  // If memory limits the speed, lines are fetched one after the other; else all at once, with fewer instructions.
  constexpr bool kMayStep = kByPages<Storage, kRows>;
  constexpr bool kOnTheWay = kWideRegisters || kRows == 1 || (kRows <= 4 && std::is_same_v<Storage, RealOf<Storage>>);
  constexpr std::int64_t kSize = sizeof(Storage), kApproach = 8;  // columns
  constexpr std::int64_t kLines =
      std::max<std::int64_t>(1, kVectors * static_cast<std::int64_t>(hn::MaxLanes(d)) * kSize / kLineBytes);
  const RealOf<Storage>* HWY_RESTRICT p = product.p + row * plan::kChunk;
  const std::int64_t o_stride = product.o_stride, at = row * o_stride + dim;
  V sum[kRows][kVectors];
  LostNan<Storage, RealTag<Storage>> lost;
  HWY_UNROLL(8)
  for (int i = 0; i < kRows; ++i) {
    HWY_UNROLL(8)
    for (int n = 0; n < kVectors; ++n) {
      sum[i][n] = part.first == product.first ? hn::Zero(d) : hn::Load(d, product.sums + at + i * o_stride + n * lanes);
    }
  }
  const std::int64_t now = lines.each;
  Ahead fetching;
  if constexpr (kOnTheWay) {
    fetching = ahead;
  } else {
    ahead.fetch_lines(lines.all);
  }
  for (std::int64_t column = part.first; column < part.last; ++column) {
    const Storage* value = product.values->template at<Storage>(column) + dim;
    if constexpr (kOnTheWay) now == kLines ? fetching.fetch<kLines, kMayStep>() : fetching.fetch_lines<kMayStep>(now);
    if (kOnTheWay && row == 0 && fetching.near())
      product.values->template approach<1, kLines>(column + kApproach, dim * kSize);
    HWY_UNROLL(4)
    for (int n = 0; n < kVectors; n += kLoad) {
      V x[kLoad];
      if constexpr (kLoad == 4) {
        LoadPairs(d, value + n * lanes, x, lost);
      } else {
        LoadPair(d, value + n * lanes, x[0], x[1], lost);
      }
      HWY_UNROLL(8)
      for (int i = 0; i < kRows; ++i) {
        const V weight = hn::Set(d, p[i * plan::kChunk + column]);
        HWY_UNROLL(4)
        for (int m = 0; m < kLoad; ++m) sum[i][n + m] = hn::MulAdd(weight, x[m], sum[i][n + m]);
      }
    }
  }
  if constexpr (kOnTheWay) ahead = fetching;
  if (lost.found()) *product.lost_nan = true;
  const bool last = part.last == product.last;
  HWY_UNROLL(8)
  for (int i = 0; i < kRows; ++i) {
    RealOf<Storage>* HWY_RESTRICT to = (last ? product.o : product.sums) + at + i * o_stride;
    HWY_UNROLL(8)
    for (int n = 0; n < kVectors; ++n) {
      V x = sum[i][n];
      if (last) {
        if constexpr (kStoredScale<Storage> != 1) x = hn::Mul(x, hn::Set(d, product.stored_scale));
        if (product.scales != nullptr) {
          x = hn::MulAdd(hn::Set(d, product.scales[row + i]), hn::Load(d, to + n * lanes), x);
        }
      }
      hn::Store(x, d, to + n * lanes);
    }
  }
}

template <class Storage, int kRows>
void ValueRows(const ValueProduct<RealOf<Storage>>& p, const ValuePart& part, std::int64_t row, Ahead& ahead) {
  constexpr int kVectors = kValueVectors<kRows>;
  const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(RealTag<Storage>()));
  const std::int64_t vectors = p.dim / lanes;
  // Asked once for all blocks of a size: a division takes as long as a column.
  const auto lines_of = [&](std::int64_t block) {
    const std::int64_t all = (part.lines * block + vectors - 1) / vectors, columns = part.last - part.first;
    return BlockLines{all, (all + columns - 1) / columns};
  };
  std::int64_t dim = 0;
  if (kVectors * lanes <= p.dim) {
    const BlockLines lines = lines_of(kVectors);
    for (; dim + kVectors * lanes <= p.dim; dim += kVectors * lanes) {
      ValueBlock<Storage, kRows, kVectors>(p, part, row, dim, lines, ahead);
    }
  }
  if constexpr (kVectors > 4) {
    for (; dim + 4 * lanes <= p.dim; dim += 4 * lanes) {
      ValueBlock<Storage, kRows, 4>(p, part, row, dim, lines_of(4), ahead);
    }
  }
  for (; dim < p.dim; dim += 2 * lanes) ValueBlock<Storage, kRows, 2>(p, part, row, dim, lines_of(2), ahead);
}

/// All rows, in `blocks` blocks of nearly one size.
template <class Storage>
void ValuesOfPart(const ValueProduct<RealOf<Storage>>& p, const ValuePart& part, std::int64_t rows, std::int64_t blocks,
                  Ahead& ahead) {
  for (std::int64_t row = 0, now = 0; row < rows; row += now, --blocks) {
    now = (rows - row) / blocks;
    switch (now) {
      case 1:
        ValueRows<Storage, 1>(p, part, row, ahead);
        break;
      case 2:
        ValueRows<Storage, 2>(p, part, row, ahead);
        break;
      case 3:
        ValueRows<Storage, 3>(p, part, row, ahead);
        break;
      case 4:
        ValueRows<Storage, 4>(p, part, row, ahead);
        break;
      case 5:
        ValueRows<Storage, 5>(p, part, row, ahead);
        break;
      case 6:
        ValueRows<Storage, 6>(p, part, row, ahead);
        break;
      default:
        if constexpr (kMostValueRows == 8) {
          now == 7 ? ValueRows<Storage, 7>(p, part, row, ahead) : ValueRows<Storage, 8>(p, part, row, ahead);
        }
    }
  }
}

/// Bytes of values that stay in cache while all rows pass over them: in L1 beside those that are fetched; where there
/// are more rows, whose sums are read and written once for each part, partly in L2.
constexpr std::int64_t PartBytes(bool near, std::int64_t rows) {
  return !near || rows > 16 ? 32768 : rows > 8 ? 16384 : 8192;
}

/// O = scale O + P V. Fetches one line ahead for each line read if they are near, else all that are left.
template <class Storage>
void AddValuesInPlace(const ValueProduct<RealOf<Storage>>& p, std::int64_t rows, Ahead& ahead) {
  const std::int64_t columns = p.last - p.first, blocks = (rows + kMostValueRows - 1) / kMostValueRows;
  const std::int64_t step =
      p.sums == nullptr ? columns : std::max<std::int64_t>(8, PartBytes(ahead.near(), rows) / p.values->bytes);
  for (std::int64_t first = p.first; first < p.last; first += step) {
    const std::int64_t last = std::min(first + step, p.last);
    const std::int64_t lines = ahead.near() ? (last - first) * ((p.values->bytes + kLineBytes - 1) / kLineBytes)
                                            : ahead.lines() * (last - first) / (p.last - first);
    ValuesOfPart<Storage>(p, {first, last, (lines + blocks - 1) / blocks}, rows, blocks, ahead);
  }
}

}  // namespace detail

}  // namespace heddle::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // the toggling guard
