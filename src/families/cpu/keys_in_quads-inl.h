// S = Q K^T over keys that are read where they stand, for more rows of queries than a few: a vector holds four
// dimensions (f64: two) of each of several rows, a row in each block of 16 bytes. Four dimensions of a key are then one
// load for all of its blocks, and a conversion serves all rows. The sums over a block are a row's scores of four keys.

// A guard that toggles, as Highway's per-target headers have.
#if defined(HEDDLE_CPU_KEYS_IN_QUADS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEDDLE_CPU_KEYS_IN_QUADS_INL_H_
#undef HEDDLE_CPU_KEYS_IN_QUADS_INL_H_
#else
#define HEDDLE_CPU_KEYS_IN_QUADS_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>

#include "families/cpu/keys_in_place-inl.h"
#include "families/cpu/row_addresses-inl.h"
#include "families/cpu/stored_rows-inl.h"
#include "families/cpu/target_data.h"

HWY_BEFORE_NAMESPACE();
namespace heddle::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

namespace detail {

/// Dimensions of a block.
template <class T>
inline constexpr std::int64_t kQuadDims = 16 / static_cast<std::int64_t>(sizeof(T));

/// The data of S = Q K^T. Keys are `dim` elements long, a multiple of two blocks.
template <class T>
struct QuadProduct {
  const T* q;  // as ArrangeQuads() leaves it
  std::int64_t rows;
  const RowAddresses* keys;
  std::int64_t dim;
  const T* factors;  // [rows], and what is finite up to whole vectors
  T* scores;         // [rows][kChunk], and room for whole vectors
  bool* lost_nan;    // set if a key's NaN was read as a number
};

/// Rows of a vector; one: the target has no quads.
inline constexpr std::int64_t kQuadRows =
    std::max<std::int64_t>(1, static_cast<std::int64_t>(hn::MaxLanes(hn::ScalableTag<float>())) / 4);
/// Vectors of rows that one pass over a key computes. The registers hold this many for four keys.
inline constexpr std::int64_t kQuadVectors = kWideRegisters ? 4 : 2;
/// Dimensions between two fetches.
template <class T>
inline constexpr std::int64_t kQuadStep = 8 * kQuadDims<T>;

/// Rows of queries [rows][stride], to [passes][dim / kQuadDims][vectors of the pass][rows of a vector][kQuadDims]. The
/// dimensions of each 8 are in the storage's order if they are even and odd ones. Rows past the last are 0.
template <class T>
void ArrangeQuads(const T* q, std::int64_t stride, std::int64_t rows, std::int64_t dim, bool even_odd, T* to) {
  constexpr std::int64_t kDims = kQuadDims<T>;
  for (std::int64_t first = 0; first < rows; first += kQuadRows * kQuadVectors) {
    const std::int64_t here = std::min(plan::round_up(rows - first, kQuadRows), kQuadRows * kQuadVectors);
    for (std::int64_t r = 0; r < here; ++r) {
      const T* row = q + (first + r) * stride;
      for (std::int64_t d = 0; d < dim; d += 2 * kDims) {
        T *even = to + (d * here + r * kDims), *odd = even + kDims * here;
        for (std::int64_t i = 0; i < kDims; ++i) {
          const bool is_query = first + r < rows;
          even[i] = is_query ? row[d + (even_odd ? 2 * i : i)] : 0;
          odd[i] = is_query ? row[d + (even_odd ? 2 * i + 1 : kDims + i)] : 0;
        }
      }
    }
    to += here * dim;
  }
}

/// Scores of as many keys as a block has lanes, a row in each block of `x`.
template <class V>
HWY_INLINE void StoreQuads(V x, const hn::TFromV<V>* factors, hn::TFromV<V>* to) {
  const hn::DFromV<V> d;
  constexpr std::int64_t kBlock = kQuadDims<hn::TFromV<V>>;
  if constexpr (kQuadRows == 1 || hn::MaxLanes(d) <= kBlock) {
    hn::StoreU(hn::Mul(x, hn::Set(d, *factors)), d, to);
  } else {
    const hn::Half<decltype(d)> half;
    constexpr std::int64_t kRows = static_cast<std::int64_t>(hn::MaxLanes(d)) / (2 * kBlock);
    StoreQuads(hn::LowerHalf(half, x), factors, to);
    StoreQuads(UpperHalf(half, x), factors + kRows, to + kRows * plan::kChunk);
  }
}

/// Scores of kVectors vectors of rows and kKeys keys. One chain a lane.
template <class Storage, int kVectors, int kKeys>
HWY_INLINE void QuadBlock(const QuadProduct<RealOf<Storage>>& p, const RealOf<Storage>* HWY_RESTRICT q,
                          std::int64_t row, std::int64_t column, Ahead& ahead,
                          LostNan<Storage, RealTag<Storage>>& lost) {
  const RealTag<Storage> d;
  using V = hn::Vec<RealTag<Storage>>;
  constexpr std::int64_t kDims = kQuadDims<RealOf<Storage>>, kStep = kQuadStep<RealOf<Storage>>;
  const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(d));
  constexpr std::int64_t kLines = kKeys * kStep * static_cast<std::int64_t>(sizeof(Storage)) / kLineBytes;
  const Storage* key[kKeys];
  V sum[kVectors][kKeys];
  HWY_UNROLL(8)
  for (int j = 0; j < kKeys; ++j) {
    key[j] = p.keys->template at<Storage>(column + j);
    HWY_UNROLL(8)
    for (int n = 0; n < kVectors; ++n) sum[n][j] = hn::Zero(d);
  }
  for (std::int64_t begin = 0; begin < p.dim; begin += kStep) {
    ahead.fetch<kLines>();
    if (ahead.near()) {
      p.keys->template approach<kKeys, std::max<std::int64_t>(1, kLines / kKeys)>(
          column + kKeys, begin * static_cast<std::int64_t>(sizeof(Storage)));
    }
    const std::int64_t end = std::min(begin + kStep, p.dim);
    for (std::int64_t first = begin; first < end; first += 2 * kDims, q += 2 * kVectors * lanes) {
      HWY_UNROLL(8)
      for (int j = 0; j < kKeys; ++j) {
        V a, b;
        LoadQuads(d, key[j] + first, a, b, lost);
        HWY_UNROLL(8)
        for (int n = 0; n < kVectors; ++n) sum[n][j] = hn::MulAdd(hn::Load(d, q + n * lanes), a, sum[n][j]);
        HWY_UNROLL(8)
        for (int n = 0; n < kVectors; ++n) {
          sum[n][j] = hn::MulAdd(hn::Load(d, q + (kVectors + n) * lanes), b, sum[n][j]);
        }
      }
    }
  }
  HWY_UNROLL(8)
  for (int n = 0; n < kVectors; ++n) {
    HWY_UNROLL(8)
    for (int j = 0; j < kKeys; j += static_cast<int>(kDims)) {
      const RealOf<Storage>* factors = p.factors + row + n * kQuadRows;
      RealOf<Storage>* scores = p.scores + (row + n * kQuadRows) * plan::kChunk + column + j;
      if constexpr (kDims == 2) {
        StoreQuads(SumsInBlocks(sum[n][j], sum[n][j + 1]), factors, scores);
      } else {
        StoreQuads(SumsInBlocks(sum[n][j], sum[n][j + 1], sum[n][j + 2], sum[n][j + 3]), factors, scores);
      }
    }
  }
}

/// Columns [first, last), a multiple of 16 of them, for one pass of rows.
template <class Storage, int kVectors>
HWY_NOINLINE void QuadColumns(const QuadProduct<RealOf<Storage>>& p, std::int64_t row, std::int64_t first,
                              std::int64_t last, Ahead& ahead) {
  LostNan<Storage, RealTag<Storage>> lost;
  Ahead fetching = ahead;
  for (std::int64_t column = first; column < last; column += 4) {
    QuadBlock<Storage, kVectors, 4>(p, p.q + row * p.dim, row, column, fetching, lost);
  }
  ahead = fetching;
  if (lost.found()) *p.lost_nan = true;
}

/// Columns [first, last) for all rows. The first pass over the keys fetches one key ahead for each that it reads; later
/// passes find them in L1.
template <class Storage>
void Quads(const QuadProduct<RealOf<Storage>>& p, std::int64_t first, std::int64_t last, Ahead& ahead) {
  Ahead none;
  for (std::int64_t row = 0; row < p.rows; row += kQuadRows * kQuadVectors) {
    Ahead& fetching = row == 0 ? ahead : none;
    const std::int64_t vectors = std::min((p.rows - row + kQuadRows - 1) / kQuadRows, kQuadVectors);
    if (vectors == 1) {
      QuadColumns<Storage, 1>(p, row, first, last, fetching);
    } else if (vectors == 2) {
      QuadColumns<Storage, 2>(p, row, first, last, fetching);
    } else if constexpr (kQuadVectors == 4) {
      vectors == 3 ? QuadColumns<Storage, 3>(p, row, first, last, fetching)
                   : QuadColumns<Storage, 4>(p, row, first, last, fetching);
    }
  }
}

}  // namespace detail

}  // namespace heddle::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // the toggling guard
