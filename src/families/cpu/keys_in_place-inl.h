// S = Q K^T over keys that are read where they stand, a row at a time, for few rows of queries: no panel is packed.
//
// `Dot` has dimensions in lanes and reads each key once for up to four rows of queries. `Lanes` has rows of queries in
// lanes, and a key's element is one broadcast: for as many rows as fill vectors.

// A guard that toggles, as Highway's per-target headers have.
#if defined(HEDDLE_CPU_KEYS_IN_PLACE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEDDLE_CPU_KEYS_IN_PLACE_INL_H_
#undef HEDDLE_CPU_KEYS_IN_PLACE_INL_H_
#else
#define HEDDLE_CPU_KEYS_IN_PLACE_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>

#include "families/cpu/pack-inl.h"
#include "families/cpu/row_addresses-inl.h"
#include "families/cpu/stored_rows-inl.h"
#include "families/cpu/target_data.h"

HWY_BEFORE_NAMESPACE();
namespace heddle::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

namespace detail {

/// Sums of the lanes of four vectors.
#if HWY_TARGET == HWY_SCALAR
struct FourSums {
  float sums[4];
};
template <class V>
HWY_INLINE FourSums SumsOfFour(V a, V b, V c, V e) {
  return {{hn::GetLane(a), hn::GetLane(b), hn::GetLane(c), hn::GetLane(e)}};
}
HWY_INLINE void StoreFour(const FourSums& x, float factor, float* to) {
  for (int i = 0; i < 4; ++i) to[i] = factor * x.sums[i];
}
HWY_INLINE void StoreTwoRows(const FourSums& x, const float* factors, float* to) {
  for (int i = 0; i < 4; ++i) to[i / 2 * plan::kChunk + i % 2] = factors[i / 2] * x.sums[i];
}
#else
using FourSums = hn::Vec<hn::Full128<float>>;
template <class V>
HWY_INLINE FourSums Halved(V x) {
  const hn::DFromV<V> d;
  if constexpr (hn::MaxLanes(d) <= 4) {
    return x;
  } else {
    const hn::Half<decltype(d)> half;
    return Halved(hn::Add(hn::LowerHalf(half, x), hn::UpperHalf(half, x)));
  }
}
template <class V>
HWY_INLINE FourSums SumsOfFour(V a, V b, V c, V e) {
  const hn::DFromV<V> d;
  const hn::Repartition<double, decltype(d)> wide;
  const auto ab = hn::BitCast(wide, hn::Add(hn::InterleaveLower(d, a, b), hn::InterleaveUpper(d, a, b)));
  const auto ce = hn::BitCast(wide, hn::Add(hn::InterleaveLower(d, c, e), hn::InterleaveUpper(d, c, e)));
  return Halved(
      hn::Add(hn::BitCast(d, hn::InterleaveLower(wide, ab, ce)), hn::BitCast(d, hn::InterleaveUpper(wide, ab, ce))));
}
HWY_INLINE void StoreFour(FourSums x, float factor, float* to) {
  const hn::Full128<float> d;
  hn::StoreU(hn::Mul(x, hn::Set(d, factor)), d, to);
}
/// Two columns of one row, then those of the next.
HWY_INLINE void StoreTwoRows(FourSums x, const float* factors, float* to) {
  const hn::Full128<float> d;
  const hn::Half<decltype(d)> half;
  const auto lower = hn::Mul(hn::LowerHalf(half, x), hn::Set(half, factors[0]));
  const auto upper = hn::Mul(hn::UpperHalf(half, x), hn::Set(half, factors[1]));
  hn::StoreU(lower, half, to);
  hn::StoreU(upper, half, to + plan::kChunk);
}
#endif

/// sum += products of kRows rows and kKeys keys over kPairs pairs of vectors from dimension `first` on.
template <int kPairs, class Storage, int kRows, int kKeys, class V>
HWY_INLINE void DotStep(const float* HWY_RESTRICT q, std::int64_t q_stride, const Storage* const (&key)[kKeys],
                        std::int64_t first, V (&sum)[kRows][kKeys]) {
  const hn::ScalableTag<float> d;
  const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(d));
  HWY_UNROLL(8)
  for (int j = 0; j < kKeys; ++j) {
    V x[2 * kPairs];
    if constexpr (kPairs == 2) {
      LoadPairs(d, key[j] + first, x);
    } else {
      LoadPair(d, key[j] + first, x[0], x[1]);
    }
    HWY_UNROLL(8)
    for (int i = 0; i < kRows; ++i) {
      HWY_UNROLL(4)
      for (int n = 0; n < 2 * kPairs; ++n) {
        sum[i][j] = hn::MulAdd(hn::Load(d, q + i * q_stride + first + n * lanes), x[n], sum[i][j]);
      }
    }
  }
}

/// Scores of kRows rows and kKeys keys; `dim` is a multiple of a pair. One chain a lane. A single row fetches what
/// comes on the way: there little else is to be done.
template <class Storage, int kRows, int kKeys>
HWY_NOINLINE void DotBlock(const float* HWY_RESTRICT q, std::int64_t q_stride, const RowAddresses& keys,
                           std::int64_t column, std::int64_t dim, const float* factors, float* HWY_RESTRICT scores,
                           Ahead& ahead) {
  const hn::ScalableTag<float> d;
  using V = hn::Vec<hn::ScalableTag<float>>;
  const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(d));
  constexpr int kPairs = kThroughF16<Storage> ? 2 : 1;
  constexpr std::int64_t kLine = kLineBytes / static_cast<std::int64_t>(sizeof(Storage));  // elements
  const Storage* key[kKeys];
  V sum[kRows][kKeys];
  HWY_UNROLL(8)
  for (int j = 0; j < kKeys; ++j) {
    key[j] = keys.at<Storage>(column + j);
    HWY_UNROLL(8)
    for (int i = 0; i < kRows; ++i) sum[i][j] = hn::Zero(d);
  }
  std::int64_t first = 0;
  if (kKeys == 8 && ahead.lines() > 0) {
    Ahead fetching = ahead;
    const std::int64_t pairs = 2 * kPairs * lanes, step = std::max(kLine, pairs);  // a pair may be longer than a line
    for (; first + step <= dim; first += step) {
      fetching.fetch(kKeys * (step / kLine));  // as many lines as are read
      for (std::int64_t i = 0; i < step; i += pairs) DotStep<kPairs>(q, q_stride, key, first + i, sum);
    }
    ahead = fetching;
  }
  for (; first + 2 * kPairs * lanes <= dim; first += 2 * kPairs * lanes) DotStep<kPairs>(q, q_stride, key, first, sum);
  for (; first < dim; first += 2 * lanes) DotStep<1>(q, q_stride, key, first, sum);
  if constexpr (kKeys == 2) {
    HWY_UNROLL(8)
    for (int i = 0; i + 2 <= kRows; i += 2) {
      StoreTwoRows(SumsOfFour(sum[i][0], sum[i][1], sum[i + 1][0], sum[i + 1][1]), factors + i,
                   scores + i * plan::kChunk + column);
    }
  } else {
    HWY_UNROLL(8)
    for (int i = 0; i < kRows; ++i) {
      HWY_UNROLL(8)
      for (int j = 0; j < kKeys; j += 4) {
        StoreFour(SumsOfFour(sum[i][j], sum[i][j + 1], sum[i][j + 2], sum[i][j + 3]), factors[i],
                  scores + i * plan::kChunk + column + j);
      }
    }
  }
}

/// The data of S = Q K^T. Keys are `dim` elements long, a multiple of a pair.
struct ScoreProduct {
  const float* q;  // [rows][q_stride], in the storage's order
  std::int64_t q_stride;
  const RowAddresses* keys;
  std::int64_t dim;
  const float* factors;  // [rows]
  float* scores;         // [rows][kChunk]
  bool* lost_nan;        // set if a key's NaN was read as a number
};

/// Scores of rows [row, row + kRows) and columns [first, last), a multiple of 16 of them.
template <class Storage, int kRows>
void DotColumns(const ScoreProduct& p, std::int64_t row, std::int64_t first, std::int64_t last, Ahead& ahead) {
  constexpr int kKeys = kRows == 1 ? 8 : kRows == 4 ? 2 : 4;
  const std::int64_t row_lines = (p.keys->bytes + kLineBytes - 1) / kLineBytes;
  for (std::int64_t column = first; column < last; column += kKeys) {
    if (row == 0) FindLostNan<Storage>(*p.keys, column, column + kKeys, p.lost_nan);
    if constexpr (kKeys < 8) ahead.fetch(kKeys * row_lines);
    DotBlock<Storage, kRows, kKeys>(p.q + row * p.q_stride, p.q_stride, *p.keys, column, p.dim, p.factors + row,
                                    p.scores + row * plan::kChunk, ahead);
  }
}

template <class Storage>
void Dot(const ScoreProduct& p, std::int64_t row, std::int64_t rows, std::int64_t first, std::int64_t last,
         Ahead& ahead) {
  Ahead none;
  for (bool once = true; rows > 0; once = false) {
    Ahead& fetching = once ? ahead : none;  // the first block of rows reads the keys, the others have them in L1
    const std::int64_t now = rows > 6 || rows == 4 ? 4 : rows > 3 ? 3 : rows;
    switch (now) {
      case 1:
        DotColumns<Storage, 1>(p, row, first, last, fetching);
        break;
      case 2:
        DotColumns<Storage, 2>(p, row, first, last, fetching);
        break;
      case 3:
        DotColumns<Storage, 3>(p, row, first, last, fetching);
        break;
      default:
        DotColumns<Storage, 4>(p, row, first, last, fetching);
    }
    row += now;
    rows -= now;
  }
}

/// Dimensions of one chain: as the packed product's (kDepth).
inline constexpr std::int64_t kLaneDepth = 64;
/// sums [kKeys][stride] += products of kKeys keys in f32 and kVectors vectors of rows, `depth` dimensions. A single
/// vector has two chains, which hide a multiply-add's latency.
template <int kKeys, int kVectors>
HWY_NOINLINE void LaneBlock(const float* HWY_RESTRICT q, std::int64_t stride, const RowAddresses& keys,
                            std::int64_t column, std::int64_t first, std::int64_t depth, float* HWY_RESTRICT sums) {
  const hn::ScalableTag<float> d;
  using V = hn::Vec<hn::ScalableTag<float>>;
  const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(d));
  constexpr int kChains = 2;  // kVectors vectors, or the even and the odd dimensions of one
  constexpr int kStep = kChains / kVectors;
  const float* key[kKeys];
  V sum[kKeys][kChains];
  HWY_UNROLL(8)
  for (int j = 0; j < kKeys; ++j) {
    key[j] = keys.at<float>(column + j) + first;
    sum[j][0] = sum[j][1] = hn::Zero(d);
  }
  q += first * stride;
  std::int64_t k = 0;
  for (; k + kStep <= depth; k += kStep, q += kStep * stride) {
    const V a = hn::Load(d, q), b = hn::Load(d, q + (kVectors == 2 ? lanes : stride));
    HWY_UNROLL(8)
    for (int j = 0; j < kKeys; ++j) {
      sum[j][0] = hn::MulAdd(hn::Set(d, key[j][k]), a, sum[j][0]);
      sum[j][1] = hn::MulAdd(hn::Set(d, key[j][kVectors == 2 ? k : k + 1]), b, sum[j][1]);
    }
  }
  HWY_UNROLL(8)
  for (int j = 0; j < kKeys; ++j) {
    float* to = sums + j * stride;
    if constexpr (kVectors == 1) {
      if (k < depth) sum[j][0] = hn::MulAdd(hn::Set(d, key[j][k]), hn::Load(d, q), sum[j][0]);
      sum[j][0] = hn::Add(sum[j][0], sum[j][1]);
    }
    HWY_UNROLL(2)
    for (int n = 0; n < kVectors; ++n) {
      const V before = first == 0 ? hn::Zero(d) : hn::Load(d, to + n * lanes);
      hn::Store(hn::Add(before, sum[j][n]), d, to + n * lanes);
    }
  }
}

/// Scores of rows in lanes. q: [dim][stride]; sums: scratch [plan::kLaneKeys][stride]. lane_rows: a multiple of
/// Lanes(d).
struct LaneProduct {
  const float* q;
  std::int64_t stride, lane_rows, rows;
  const RowAddresses* keys;
  std::int64_t dim;
  const float* factors;
  float* sums;
  float* scores;
};

template <int kVectors>
void LaneColumns(const LaneProduct& p, std::int64_t row, std::int64_t first, std::int64_t count, std::int64_t lines,
                 Ahead& ahead) {
  for (std::int64_t dim = 0; dim < p.dim; dim += kLaneDepth) {
    const std::int64_t depth = std::min(kLaneDepth, p.dim - dim);
    // `count` is a multiple of 16: blocks of 6, then blocks of 4.
    const std::int64_t fours = count % 6 == 0 ? 0 : count % 6 == 4 ? 1 : 2;
    std::int64_t i = 0;
    for (; i < count - fours * 4; i += 6) {
      ahead.fetch(lines);
      LaneBlock<6, kVectors>(p.q + row, p.stride, *p.keys, first + i, dim, depth, p.sums + i * p.stride + row);
    }
    for (; i < count; i += 4) {
      ahead.fetch(lines);
      LaneBlock<4, kVectors>(p.q + row, p.stride, *p.keys, first + i, dim, depth, p.sums + i * p.stride + row);
    }
  }
}

/// Columns [first, last) for all rows in lanes. `lines` of the rows ahead are fetched on the way.
inline void LaneScores(const LaneProduct& p, std::int64_t first, std::int64_t last, std::int64_t lines, Ahead& ahead) {
  const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(hn::ScalableTag<float>()));
  const std::int64_t blocks = plan::round_up(p.lane_rows, 2 * lanes) / (2 * lanes) *
                              (plan::round_up(p.dim, kLaneDepth) / kLaneDepth) * ((last - first) / 5);
  const std::int64_t now = (lines + blocks - 1) / blocks;
  std::int64_t row = 0;
  for (; row + 2 * lanes <= p.lane_rows; row += 2 * lanes) LaneColumns<2>(p, row, first, last - first, now, ahead);
  if (row < p.lane_rows) LaneColumns<1>(p, row, first, last - first, now, ahead);
  constexpr std::int64_t kStep = kBlock<float>;
  for (row = 0; row < p.lane_rows; row += kStep) {
    for (std::int64_t column = first; column < last; column += kStep) {
      TransposeBlock(p.sums + (column - first) * p.stride + row, p.stride, p.scores + row * plan::kChunk + column,
                     plan::kChunk);
    }
  }
  const hn::ScalableTag<float> d;
  for (row = 0; row < std::min(p.rows, p.lane_rows); ++row) {
    const auto factor = hn::Set(d, p.factors[row]);
    for (std::int64_t column = first; column < last; column += lanes) {
      float* score = p.scores + row * plan::kChunk + column;
      hn::Store(hn::Mul(hn::Load(d, score), factor), d, score);
    }
  }
}

}  // namespace detail

}  // namespace heddle::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // the toggling guard
