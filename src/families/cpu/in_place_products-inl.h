// The two products of attention over keys and values that are read where they stand, a row at a time, for few rows of
// queries: no panel is packed. Rows of a chunk are given by their addresses, so pages and strides cost nothing here.
//
// S = Q K^T has two kernels. `Dot` has dimensions in lanes and reads each key once for up to four rows of queries.
// `Lanes` has rows of queries in lanes, and a key's element is one broadcast: for as many rows as fill vectors.
// O = scale O + P V has dimensions in lanes, and up to six rows.

// A guard that toggles, as Highway's per-target headers have.
#if defined(HEDDLE_CPU_IN_PLACE_PRODUCTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEDDLE_CPU_IN_PLACE_PRODUCTS_INL_H_
#undef HEDDLE_CPU_IN_PLACE_PRODUCTS_INL_H_
#else
#define HEDDLE_CPU_IN_PLACE_PRODUCTS_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "families/cpu/pack-inl.h"
#include "families/cpu/stored_rows-inl.h"
#include "families/cpu/tile.h"

HWY_BEFORE_NAMESPACE();
namespace heddle::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

namespace detail {

inline constexpr std::int64_t kLineBytes = 64;

/// Where the rows of a chunk start, one a score column. Columns past the last key repeat its row.
struct RowAddresses {
  const std::byte* row[plan::kChunk];
  std::int64_t bytes;  // of a row

  template <class Storage>
  const Storage* at(std::int64_t column) const {
    return reinterpret_cast<const Storage*>(row[column]);
  }
};

/// Rows that are fetched while others are computed on, line after line, since in any other order the hardware's own
/// prefetching does not join in: those of a phase, and then those of the next.
class Ahead {
 public:
  Ahead(const RowAddresses& rows, std::int64_t columns, bool near) : near_(near) { begin(rows, columns); }
  Ahead() = default;

  /// True: a short way ahead, into L1. A line that waits in L2 takes a second of the few entries for misses, which
  /// limit what a core reads of memory: where every line is read once, that costs half the speed. False: a phase ahead,
  /// to L2.
  bool near() const { return near_; }
  /// Lines of the phase's rows that are still to be fetched.
  std::int64_t lines() const { return left_ == 0 ? 0 : (columns_ - column_ - 1) * row_lines_ + left_; }

  /// The rows of the next phase: they come after those of this one, or are fetched in this one.
  void then(const RowAddresses& rows, std::int64_t columns) {
    next_ = &rows;
    next_columns_ = columns;
    if (!near_) begin(rows, columns);
  }
  /// A phase begins that reads these rows.
  void enter(const RowAddresses& rows, std::int64_t columns) {
    if (near_ && rows_ != &rows) begin(rows, columns);
  }
  HWY_INLINE void fetch(std::int64_t count) {
    for (; count > 0 && left_ > 0; --count) {
      near_ ? __builtin_prefetch(line_, 0, 3) : __builtin_prefetch(line_, 0, 2);
      line_ += kLineBytes;
      if (--left_ == 0) next_row();
    }
  }

 private:
  void begin(const RowAddresses& rows, std::int64_t columns) {
    rows_ = &rows;
    row_lines_ = (rows.bytes + kLineBytes - 1) / kLineBytes;
    columns_ = columns;
    column_ = -1;
    next_ = nullptr;
    next_row();
  }
  void next_row() {
    if (++column_ < columns_) {
      line_ = rows_->row[column_];
      left_ = row_lines_;
    } else if (next_ != nullptr) {
      begin(*next_, next_columns_);
    } else {
      left_ = 0;
    }
  }

  const std::byte* line_ = nullptr;
  std::int64_t left_ = 0;  // lines of the row; 0: nothing is left
  const RowAddresses* rows_ = nullptr;
  const RowAddresses* next_ = nullptr;
  std::int64_t column_ = 0, columns_ = 0, next_columns_ = 0, row_lines_ = 0;
  bool near_ = false;
};

/// Sets *lost when rows [first, last) hold a NaN that LoadPair() does not keep.
template <class Storage>
void FindLostNan(const RowAddresses& rows, std::int64_t first, std::int64_t last, bool* lost) {
  if constexpr (kThroughF16<Storage> && std::is_same_v<Storage, e4m3>) {
    *lost = HasNan([&](std::int64_t i) { return rows.at<e4m3>(i); }, first, last, rows.bytes) || *lost;
  }
}

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
    for (; first + kLine <= dim; first += kLine) {
      fetching.fetch(kKeys);  // as many lines as are read
      for (std::int64_t i = 0; i < kLine; i += 2 * kPairs * lanes) DotStep<kPairs>(q, q_stride, key, first + i, sum);
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

/// The data of O = scale O + P V for columns [first, last) of a chunk.
struct ValueProduct {
  const float* p;  // [rows][kChunk]
  const RowAddresses* values;
  std::int64_t first, last, dim;
  const float* scales;  // [rows], or null: o is overwritten
  float stored_scale;
  float* o;  // [rows][o_stride], in the storage's order
  std::int64_t o_stride;
  float* sums;     // [rows][o_stride]: scratch, or null: the columns are one part
  bool* lost_nan;  // set if a value's NaN was read as a number
};

/// Some columns of a ValueProduct, whose values stay in L1 while all rows and dimensions pass over them.
struct ValuePart {
  std::int64_t first, last;
  std::int64_t lines;  // that each block of rows and dimensions fetches
};

/// kRows rows, kVectors vectors from dimension `dim` on: one chain a lane over the chunk's keys.
template <class Storage, int kRows, int kVectors>
HWY_NOINLINE void ValueBlock(const ValueProduct& product, const ValuePart& part, std::int64_t row, std::int64_t dim,
                             std::int64_t lines, Ahead& ahead) {
  const hn::ScalableTag<float> d;
  using V = hn::Vec<hn::ScalableTag<float>>;
  const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(d));
  constexpr int kLoad = kThroughF16<Storage> && kVectors % 4 == 0 ? 4 : 2;  // vectors of one load
  // Where memory decides, lines are fetched one after the other; else all at once, which costs fewer instructions.
  constexpr bool kOnTheWay = kRows == 1 || (kRows <= 4 && std::is_same_v<Storage, float>);
  const float* HWY_RESTRICT p = product.p + row * plan::kChunk;
  const std::int64_t o_stride = product.o_stride, at = row * o_stride + dim;
  V sum[kRows][kVectors];
  HWY_UNROLL(8)
  for (int i = 0; i < kRows; ++i) {
    HWY_UNROLL(8)
    for (int n = 0; n < kVectors; ++n) {
      sum[i][n] = part.first == product.first ? hn::Zero(d) : hn::Load(d, product.sums + at + i * o_stride + n * lanes);
    }
  }
  std::int64_t now = 0;
  Ahead fetching;
  if constexpr (kOnTheWay) {
    fetching = ahead;
    now = (lines + part.last - part.first - 1) / (part.last - part.first);
  } else {
    ahead.fetch(lines);
  }
  for (std::int64_t column = part.first; column < part.last; ++column) {
    const Storage* value = product.values->at<Storage>(column) + dim;
    if constexpr (kOnTheWay) fetching.fetch(now);
    HWY_UNROLL(4)
    for (int n = 0; n < kVectors; n += kLoad) {
      V x[kLoad];
      if constexpr (kLoad == 4) {
        LoadPairs(d, value + n * lanes, x);
      } else {
        LoadPair(d, value + n * lanes, x[0], x[1]);
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
  const bool last = part.last == product.last;
  HWY_UNROLL(8)
  for (int i = 0; i < kRows; ++i) {
    float* HWY_RESTRICT to = (last ? product.o : product.sums) + at + i * o_stride;
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
void ValueRows(const ValueProduct& p, const ValuePart& part, std::int64_t row, Ahead& ahead) {
  constexpr int kVectors = kRows == 1 ? 8 : kRows <= 3 ? 4 : 2;
  const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(hn::ScalableTag<float>()));
  const std::int64_t vectors = p.dim / lanes;
  const auto lines_of = [&](std::int64_t block) { return (part.lines * block + vectors - 1) / vectors; };
  std::int64_t dim = 0;
  for (; dim + kVectors * lanes <= p.dim; dim += kVectors * lanes) {
    ValueBlock<Storage, kRows, kVectors>(p, part, row, dim, lines_of(kVectors), ahead);
  }
  if constexpr (kVectors > 4) {
    for (; dim + 4 * lanes <= p.dim; dim += 4 * lanes) {
      ValueBlock<Storage, kRows, 4>(p, part, row, dim, lines_of(4), ahead);
    }
  }
  for (; dim < p.dim; dim += 2 * lanes) ValueBlock<Storage, kRows, 2>(p, part, row, dim, lines_of(2), ahead);
}

/// All rows, in `blocks` blocks of at most six, of nearly one size.
template <class Storage>
void ValuesOfPart(const ValueProduct& p, const ValuePart& part, std::int64_t rows, std::int64_t blocks, Ahead& ahead) {
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
      default:
        ValueRows<Storage, 6>(p, part, row, ahead);
    }
  }
}

/// Bytes of values that stay in L1 beside those that are fetched; and where many rows pass over them, in L1 by lines.
inline constexpr std::int64_t kPartBytes = 8192, kFarPartBytes = 32768;

/// O = scale O + P V. The lines that are fetched: as many as are read if they are near, else those that are left.
template <class Storage>
void AddValuesInPlace(const ValueProduct& p, std::int64_t rows, Ahead& ahead) {
  const std::int64_t columns = p.last - p.first, blocks = (rows + 5) / 6;
  const std::int64_t step =
      p.sums == nullptr ? columns
                        : std::max<std::int64_t>(8, (ahead.near() ? kPartBytes : kFarPartBytes) / p.values->bytes);
  for (std::int64_t first = p.first; first < p.last; first += step) {
    const std::int64_t last = std::min(first + step, p.last);
    const std::int64_t lines = ahead.near() ? (last - first) * ((p.values->bytes + kLineBytes - 1) / kLineBytes)
                                            : ahead.lines() * (last - first) / (p.last - first);
    FindLostNan<Storage>(*p.values, first, last, p.lost_nan);
    ValuesOfPart<Storage>(p, {first, last, (lines + blocks - 1) / blocks}, rows, blocks, ahead);
  }
}

}  // namespace detail

}  // namespace heddle::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // the toggling guard
