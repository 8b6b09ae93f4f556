// S = Q K^T over keys that are read where they stand, a row at a time, for few rows of queries: no panel is packed.
// Dimensions stand in lanes, and each key is read once for up to four rows of queries.

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
#include <type_traits>

#include "families/cpu/row_addresses-inl.h"
#include "families/cpu/stored_rows-inl.h"
#include "families/cpu/target_data.h"

HWY_BEFORE_NAMESPACE();
namespace heddle::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

namespace detail {

/// Sums of the lanes of four vectors.
#if HWY_TARGET == HWY_SCALAR
template <class T>
struct FourSums {
  T sums[4];
};
template <class V>
HWY_INLINE auto SumsOfFour(V a, V b, V c, V e) {
  return FourSums<hn::TFromV<V>>{{hn::GetLane(a), hn::GetLane(b), hn::GetLane(c), hn::GetLane(e)}};
}
template <class T>
HWY_INLINE void StoreFour(const FourSums<T>& x, T factor, T* to) {
  for (int i = 0; i < 4; ++i) to[i] = factor * x.sums[i];
}
template <class T>
HWY_INLINE void StoreTwoRows(const FourSums<T>& x, const T* factors, T* to) {
  for (int i = 0; i < 4; ++i) to[i / 2 * plan::kChunk + i % 2] = factors[i / 2] * x.sums[i];
}
#else
template <class V>
HWY_INLINE auto Halved(V x) {
  const hn::DFromV<V> d;
  if constexpr (hn::MaxLanes(d) <= 16 / sizeof(hn::TFromV<V>)) {
    return x;
  } else {
    const hn::Half<decltype(d)> half;
    return Halved(hn::Add(hn::LowerHalf(half, x), hn::UpperHalf(half, x)));
  }
}
/// Sums over each block of four lanes: those of a, b, c and e stand in the block's lanes.
template <class V>
HWY_INLINE V SumsInBlocks(V a, V b, V c, V e) {
  const hn::DFromV<V> d;
  const hn::Repartition<double, decltype(d)> wide;
  const auto ab = hn::BitCast(wide, hn::Add(hn::InterleaveLower(d, a, b), hn::InterleaveUpper(d, a, b)));
  const auto ce = hn::BitCast(wide, hn::Add(hn::InterleaveLower(d, c, e), hn::InterleaveUpper(d, c, e)));
  return hn::Add(hn::BitCast(d, hn::InterleaveLower(wide, ab, ce)), hn::BitCast(d, hn::InterleaveUpper(wide, ab, ce)));
}
/// Sums over each block of two lanes: those of a and b stand in the block's lanes.
template <class V>
HWY_INLINE V SumsInBlocks(V a, V b) {
  const hn::DFromV<V> d;
  return hn::Add(hn::InterleaveLower(d, a, b), hn::InterleaveUpper(d, a, b));
}

/// One vector of f32, or two of f64.
using FourSums = hn::Vec<hn::Full128<float>>;
struct FourSumsF64 {
  hn::Vec<hn::Full128<double>> ab, ce;
};
template <class V>
HWY_INLINE auto SumsOfFour(V a, V b, V c, V e) {
  if constexpr (std::is_same_v<hn::TFromV<V>, double>) {
    return FourSumsF64{Halved(SumsInBlocks(a, b)), Halved(SumsInBlocks(c, e))};
  } else {
    return Halved(SumsInBlocks(a, b, c, e));
  }
}
HWY_INLINE void StoreFour(const FourSumsF64& x, double factor, double* to) {
  const hn::Full128<double> d;
  hn::StoreU(hn::Mul(x.ab, hn::Set(d, factor)), d, to);
  hn::StoreU(hn::Mul(x.ce, hn::Set(d, factor)), d, to + 2);
}
HWY_INLINE void StoreTwoRows(const FourSumsF64& x, const double* factors, double* to) {
  const hn::Full128<double> d;
  hn::StoreU(hn::Mul(x.ab, hn::Set(d, factors[0])), d, to);
  hn::StoreU(hn::Mul(x.ce, hn::Set(d, factors[1])), d, to + plan::kChunk);
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
HWY_INLINE void DotStep(const RealOf<Storage>* HWY_RESTRICT q, std::int64_t q_stride,
                        const Storage* const (&key)[kKeys], std::int64_t first, V (&sum)[kRows][kKeys],
                        LostNan<Storage, RealTag<Storage>>& lost) {
  const RealTag<Storage> d;
  const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(d));
  HWY_UNROLL(8)
  for (int j = 0; j < kKeys; ++j) {
    V x[2 * kPairs];
    if constexpr (kPairs == 2) {
      LoadPairs(d, key[j] + first, x, lost);
    } else {
      LoadPair(d, key[j] + first, x[0], x[1], lost);
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

/// The data of S = Q K^T. Keys are `dim` elements long, a multiple of a pair.
template <class T>
struct ScoreProduct {
  const T* q;  // [rows][q_stride], in the storage's order
  std::int64_t q_stride;
  const RowAddresses* keys;
  std::int64_t dim;
  const T* factors;  // [rows]
  T* scores;         // [rows][kChunk]
  bool* lost_nan;    // set if a key's NaN was read as a number
};

/// Whether a block fetches ahead while it multiplies. With one row, or with wide registers, it has little else to do.
template <int kRows>
inline constexpr bool kDotOnTheWay = kRows == 1 || kWideRegisters;
/// Keys of a block: the registers hold the sums of this many.
template <int kRows>
inline constexpr int kDotKeys = kRows == 1 || (kRows == 2 && kWideRegisters) ? 8
                                : kRows == 4 && !kWideRegisters              ? 2
                                                                             : 4;

/// Scores of kRows rows and kKeys keys; `dim` is a multiple of a pair. One chain a lane. Fetches one line ahead for
/// each line that it reads.
template <class Storage, int kRows, int kKeys>
HWY_INLINE void DotBlock(const ScoreProduct<RealOf<Storage>>& p, std::int64_t row, std::int64_t column, Ahead& ahead,
                         LostNan<Storage, RealTag<Storage>>& lost) {
  const RealTag<Storage> d;
  using V = hn::Vec<RealTag<Storage>>;
  constexpr std::int64_t kSize = sizeof(Storage), kPair = 2 * static_cast<std::int64_t>(hn::MaxLanes(d));
  constexpr int kPairs = kThroughF16<Storage> && !kWideRegisters ? 2 : 1;
  constexpr std::int64_t kStep = std::max(kLineBytes / kSize, kPairs * kPair), kLines = kStep * kSize / kLineBytes;
  const RealOf<Storage>* HWY_RESTRICT q = p.q + row * p.q_stride;
  const Storage* key[kKeys];
  V sum[kRows][kKeys];
  HWY_UNROLL(8)
  for (int j = 0; j < kKeys; ++j) {
    key[j] = p.keys->template at<Storage>(column + j);
    HWY_UNROLL(8)
    for (int i = 0; i < kRows; ++i) sum[i][j] = hn::Zero(d);
  }
  std::int64_t first = 0;
  if constexpr (kDotOnTheWay<kRows>) {
    for (; first + kStep <= p.dim; first += kStep) {
      ahead.fetch<kKeys * kLines, kByPages<Storage, kRows>>();
      if (ahead.near() && p.keys->together) {
        HWY_UNROLL(8)
        for (int j = 0; j < kKeys; ++j) Approach<kLines>(key[j] + first, kKeys * p.keys->bytes);
      } else if (ahead.near()) {
        p.keys->template approach<kKeys, kLines>(column + kKeys, first * kSize);
      }
      for (std::int64_t i = 0; i < kStep; i += kPairs * kPair) {
        DotStep<kPairs>(q, p.q_stride, key, first + i, sum, lost);
      }
    }
  } else {
    ahead.fetch_lines(kKeys * (p.keys->bytes + kLineBytes - 1) / kLineBytes);
  }
  for (; first + kPairs * kPair <= p.dim; first += kPairs * kPair) {
    DotStep<kPairs>(q, p.q_stride, key, first, sum, lost);
  }
  for (; first < p.dim; first += kPair) DotStep<1>(q, p.q_stride, key, first, sum, lost);
  const RealOf<Storage>* factors = p.factors + row;
  RealOf<Storage>* HWY_RESTRICT scores = p.scores + row * plan::kChunk + column;
  if constexpr (kKeys == 2) {
    HWY_UNROLL(8)
    for (int i = 0; i + 2 <= kRows; i += 2) {
      StoreTwoRows(SumsOfFour(sum[i][0], sum[i][1], sum[i + 1][0], sum[i + 1][1]), factors + i,
                   scores + i * plan::kChunk);
    }
  } else {
    HWY_UNROLL(8)
    for (int i = 0; i < kRows; ++i) {
      HWY_UNROLL(8)
      for (int j = 0; j < kKeys; j += 4) {
        StoreFour(SumsOfFour(sum[i][j], sum[i][j + 1], sum[i][j + 2], sum[i][j + 3]), factors[i],
                  scores + i * plan::kChunk + j);
      }
    }
  }
}

/// Scores of rows [row, row + kRows) and columns [first, last), a multiple of 16 of them.
template <class Storage, int kRows>
HWY_NOINLINE void DotColumns(const ScoreProduct<RealOf<Storage>>& p, std::int64_t row, std::int64_t first,
                             std::int64_t last, Ahead& ahead) {
  constexpr int kKeys = kDotKeys<kRows>;
  LostNan<Storage, RealTag<Storage>> lost;
  Ahead fetching = ahead;
  for (std::int64_t column = first; column < last; column += kKeys) {
    DotBlock<Storage, kRows, kKeys>(p, row, column, fetching, lost);
  }
  ahead = fetching;
  if (lost.found()) *p.lost_nan = true;
}

template <class Storage>
void Dot(const ScoreProduct<RealOf<Storage>>& p, std::int64_t row, std::int64_t rows, std::int64_t first,
         std::int64_t last, Ahead& ahead) {
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

}  // namespace detail

}  // namespace heddle::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // the toggling guard
