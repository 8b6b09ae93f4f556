// O = scale O + P V over a chunk of keys. Two cases need more than one product.
//
// Values that are not finite: a product would carry NaN (0 x inf, 0 x NaN) to rows that do not attend them. The product
// then reads a copy in which the values of such keys are 0, and each row adds the ones that it attends by itself. An
// infinite weight of such a key is a 0 of its sign in the product, which would make NaN of it.
//
// Sums that left the range of T: a second pass reads a copy of the values times a power of two.
//
// If the panels of values are finite and the pass is the first, both cases cost nothing.

// A guard that toggles, as Highway's per-target headers have.
#if defined(HEDDLE_BACKEND_CPU_VALUES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEDDLE_BACKEND_CPU_VALUES_INL_H_
#undef HEDDLE_BACKEND_CPU_VALUES_INL_H_
#else
#define HEDDLE_BACKEND_CPU_VALUES_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "families/cpu/gemm-inl.h"
#include "families/cpu/pack-inl.h"
#include "families/cpu/probabilities-inl.h"
#include "families/cpu/target_data.h"

HWY_BEFORE_NAMESPACE();
namespace heddle::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

namespace detail {

/// The keys of one step. Score column c is key `first` + c; `first` is a multiple of kColumnUnit, so up to kColumnUnit
/// - 1 columns lie before `begin`.
struct Chunk {
  std::int64_t first, begin, end;
  std::int64_t columns() const { return plan::round_up(end - first, kColumnUnit); }
};

/// A set of score columns.
struct ColumnSet {
  std::uint64_t words[kColumnWords] = {};

  void add(std::int64_t column) { words[column / 64] |= std::uint64_t{1} << column % 64; }
  bool has(std::int64_t column) const { return (words[column / 64] >> column % 64 & 1) != 0; }
};

/// Calls f(column) for each column of the set, in order.
template <class F>
void ForEachColumn(const std::uint64_t* words, F&& f) {
  for (std::int64_t word = 0; word < kColumnWords; ++word) {
    for (std::uint64_t bits = words[word]; bits != 0; bits &= bits - 1) f(word * 64 + std::countr_zero(bits));
  }
}

/// Where the values of the chunk's first key stand in the panel of dimension `dim`.
template <class T>
const T* ValuesOf(const PackedHead<T>& head, const Chunk& chunk, std::int64_t dim) {
  return head.v + dim * head.v_keys + chunk.begin * plan::kPanel;
}

/// Finds the columns of keys one of whose values is NaN or infinite. False when there is none.
template <class T>
bool FindNonFinite(const Tile<T>& tile, const PackedHead<T>& head, const Chunk& chunk, ColumnSet& columns) {
  const std::uint8_t* first = head.v_flags + chunk.begin / plan::kPanel;
  const std::uint8_t* last = head.v_flags + (chunk.end - 1) / plan::kPanel;
  if (std::none_of(first, last + 1, [](std::uint8_t flag) { return flag != 0; })) return false;
  bool any = false;
  for (std::int64_t dim = 0; dim < tile.v_dim; dim += plan::kPanel) {
    const T* values = ValuesOf(head, chunk, dim);
    for (std::int64_t key = chunk.begin; key < chunk.end; ++key, values += plan::kPanel) {
      if (!HasNonFinite(values, plan::kPanel)) continue;
      columns.add(key - chunk.first);
      any = true;
    }
  }
  return any;
}

/// Finds which of the given columns each row attends. Call it before scores become probabilities: an element may
/// attend and have p 0.
template <class T>
void FindAttending(const T* scores, std::int64_t rows, const ColumnSet& columns, std::uint64_t* attending) {
  for (std::int64_t r = 0; r < rows; ++r) {
    ColumnSet own;
    ForEachColumn(columns.words, [&](std::int64_t column) {
      if (scores[r * plan::kChunk + column] != kMinusInfinity<T>) own.add(column);
    });
    std::copy_n(own.words, kColumnWords, attending + r * kColumnWords);
  }
}

/// Makes zeros of the infinite weights of the columns that rows attend. After FindAttending(), when scores have become
/// weights.
template <class T>
void HideInfinite(const TileBuffers<T>& buffers, std::int64_t rows) {
  for (std::int64_t r = 0; r < rows; ++r) {
    ColumnSet infinite;
    ForEachColumn(buffers.attending + r * kColumnWords, [&](std::int64_t column) {
      T& weight = buffers.scores[r * plan::kChunk + column];
      if (!std::isinf(weight)) return;
      infinite.add(column);
      weight = std::copysign(T(0), weight);
    });
    std::copy_n(infinite.words, kColumnWords, buffers.infinite + r * kColumnWords);
  }
}

/// The weight of a column that row r attends, as it was before HideInfinite(), which left `weight`.
template <class T>
T HiddenWeight(const TileBuffers<T>& buffers, std::int64_t r, std::int64_t column, T weight) {
  const bool infinite = (buffers.infinite[r * kColumnWords + column / 64] >> column % 64 & 1) != 0;
  return infinite ? std::copysign(std::numeric_limits<T>::infinity(), weight) : weight;
}

/// One panel of the chunk's values times `scale`, with 0 for the keys of `left_out`.
template <class T>
void CopyValues(const T* values, const Chunk& chunk, const ColumnSet& left_out, T scale, T* to) {
  const hn::ScalableTag<T> d;
  for (std::int64_t key = chunk.begin; key < chunk.end; ++key, values += plan::kPanel, to += plan::kPanel) {
    const bool leave_out = left_out.has(key - chunk.first);
    for (std::int64_t i = 0; i < plan::kPanel; i += static_cast<std::int64_t>(hn::Lanes(d))) {
      hn::Store(leave_out ? hn::Zero(d) : hn::Mul(hn::Load(d, values + i), hn::Set(d, scale)), d, to + i);
    }
  }
}

/// Adds to each row the values of one panel that CopyValues left out and the row attends.
template <class T>
void AddAttended(const Tile<T>& tile, const TileBuffers<T>& buffers, const T* values, const Chunk& chunk, T scale,
                 std::int64_t dim) {
  const hn::ScalableTag<T> d;
  for (std::int64_t r = 0; r < tile.rows(); ++r) {
    T* row = buffers.accumulators + r * buffers.o_stride + dim;
    ForEachColumn(buffers.attending + r * kColumnWords, [&](std::int64_t column) {
      const auto p = hn::Set(d, HiddenWeight(buffers, r, column, buffers.scores[r * plan::kChunk + column]));
      const T* value = values + (column - (chunk.begin - chunk.first)) * plan::kPanel;
      for (std::int64_t i = 0; i < plan::kPanel; i += static_cast<std::int64_t>(hn::Lanes(d))) {
        const auto scaled = hn::Mul(hn::Load(d, value + i), hn::Set(d, scale));
        hn::Store(hn::MulAdd(p, scaled, hn::Load(d, row + i)), d, row + i);
      }
    });
  }
}

/// Special cases of a chunk's values.
template <class T>
struct ValueCases {
  const ColumnSet* non_finite = nullptr;  // with buffers.attending; null: all are finite
  T scale = 1;                            // a power of two by which they are multiplied
};

/// O = scale O + P V over exactly the chunk's keys.
template <class T>
void AddValues(const Tile<T>& tile, const PackedHead<T>& head, const TileBuffers<T>& buffers, const Chunk& chunk,
               const ValueCases<T>& cases, bool first) {
  const std::int64_t offset = chunk.begin - chunk.first, keys = chunk.end - chunk.begin;
  for (std::int64_t dim = 0; dim < tile.v_dim; dim += plan::kPanel) {
    const T* values = ValuesOf(head, chunk, dim);
    const T* factors = values;
    if (cases.non_finite != nullptr || cases.scale != 1) {
      CopyValues(values, chunk, cases.non_finite != nullptr ? *cases.non_finite : ColumnSet{}, cases.scale,
                 buffers.staging);
      factors = buffers.staging;
    }
    Multiply(Product<T>{.a = buffers.scores + offset,
                        .a_stride = plan::kChunk,
                        .b = factors,
                        .c = buffers.accumulators + dim,
                        .c_stride = buffers.o_stride,
                        .rows = tile.rows(),
                        .columns = plan::round_up(std::min(plan::kPanel, tile.v_dim - dim), kColumnUnit),
                        .depth = keys,
                        .scales = first ? nullptr : buffers.row_scales});
    if (cases.non_finite != nullptr) AddAttended(tile, buffers, values, chunk, cases.scale, dim);
  }
}

}  // namespace detail

}  // namespace heddle::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // the toggling guard
