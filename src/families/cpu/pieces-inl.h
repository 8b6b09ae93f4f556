// Keys in pieces, a tile for each: how unfinished rows are stored, and merged by their maxima.

// A guard that toggles, as Highway's per-target headers have.
#if defined(HEDDLE_CPU_PIECES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEDDLE_CPU_PIECES_INL_H_
#undef HEDDLE_CPU_PIECES_INL_H_
#else
#define HEDDLE_CPU_PIECES_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "families/cpu/probabilities-inl.h"
#include "families/cpu/target_data.h"

HWY_BEFORE_NAMESPACE();
namespace heddle::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

namespace detail {

template <class T>
double SumOf(const T* sums) {
  const hn::ScalableTag<double> d;
  const hn::Rebind<T, decltype(d)> own;
  auto sum = hn::Zero(d);
  for (std::int64_t i = 0; i < kSumLanes<T>; i += static_cast<std::int64_t>(hn::Lanes(d))) {
    if constexpr (std::is_same_v<T, double>) {
      sum = hn::Add(sum, hn::Load(d, sums + i));
    } else {
      sum = hn::Add(sum, hn::PromoteTo(d, hn::Load(own, sums + i)));
    }
  }
  return hn::GetLane(hn::SumOfLanes(d, sum));
}

/// The unfinished rows of one piece.
template <class T>
void StorePartials(const Tile<T>& tile, const TileBuffers<T>& buffers, bool any_key) {
  const Partials<T>& to = tile.partials;
  const std::int64_t columns = plan::round_up(tile.v_dim, kColumnUnit);
  for (std::int64_t i = 0; i < tile.rows(); ++i) {
    const std::int64_t row = tile.piece * to.rows + tile.partial_row + i;
    to.maxima[row] = buffers.row_maxima[i];
    to.sums[row] = static_cast<T>(SumOf(buffers.row_sums + i * kSumLanes<T>));
    const T* from = buffers.accumulators + i * buffers.o_stride;
    T* o = to.o + row * buffers.o_stride;
    if (any_key) {
      std::copy(from, from + columns, o);
    } else {
      std::fill(o, o + columns, T(0));
    }
  }
}

/// Row i of the tile: the sum of its pieces, each rescaled to the largest maximum. Pieces in which nothing attended are
/// left out, whatever they accumulated.
template <class T>
void MergeRow(const Tile<T>& tile, const TileBuffers<T>& buffers, std::int64_t i) {
  const hn::ScalableTag<T> d;
  const Partials<T>& from = tile.partials;
  const auto row_of = [&](std::int64_t piece) { return piece * from.rows + tile.partial_row + i; };
  const bool softmax = tile.normalizer == Normalizer::softmax;
  T top = kMinusInfinity<T>;
  for (std::int64_t piece = 0; piece < from.pieces; ++piece) top = std::max(top, from.maxima[row_of(piece)]);
  T sum = 0;
  T* to = buffers.accumulators + i * buffers.o_stride;
  std::fill(to, to + buffers.o_stride, T(0));
  for (std::int64_t piece = 0; piece < from.pieces; ++piece) {
    const std::int64_t row = row_of(piece);
    if (softmax && from.maxima[row] == kMinusInfinity<T> && from.sums[row] == 0) continue;
    const T scale = softmax ? std::exp(from.maxima[row] - top) : T(1);
    sum += scale * from.sums[row];
    const T* o = from.o + row * buffers.o_stride;
    for (std::int64_t c = 0; c < tile.v_dim; c += static_cast<std::int64_t>(hn::Lanes(d))) {
      hn::Store(hn::MulAdd(hn::Set(d, scale), hn::Load(d, o + c), hn::Load(d, to + c)), d, to + c);
    }
  }
  T* sums = buffers.row_sums + i * kSumLanes<T>;
  std::fill(sums, sums + kSumLanes<T>, T(0));
  sums[0] = sum;
  buffers.row_maxima[i] = top;
}

}  // namespace detail

}  // namespace heddle::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // the toggling guard
