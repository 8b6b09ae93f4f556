// One tile of attention, top to bottom: its queries against every run of keys that its row of the block mask lists, a
// chunk of at most plan::kChunk keys at a time, with the online softmax between the two products.
//
//   S [rows][kChunk] = Q K^T      score mod, or mask and score mod; -inf: does not attend
//   P = exp(S - max), in place    O [rows][Dv] = O exp(old max - max) + P V
//
// Keys and values come packed, or the tile reads them in place (attend_in_place-inl.h; cpu_forward_plans.h says when).
// Numbers that must not reach a result are kept out by selection, never by multiplication with 0: masked scores and the
// lanes beside a chunk become -inf, and values that are not finite reach the rows that attend them and no other
// (values-inl.h).
//
// Sums of p v may leave the range of T although o does not: o is their quotient by l, and an o of f64 reaches beyond
// f32. Where a finished row holds something that is not finite, the tile is computed once more with scaled values, and
// what was not finite takes the result.

// A guard that toggles, as Highway's per-target headers have.
#if defined(HEDDLE_BACKEND_CPU_FORWARD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEDDLE_BACKEND_CPU_FORWARD_INL_H_
#undef HEDDLE_BACKEND_CPU_FORWARD_INL_H_
#else
#define HEDDLE_BACKEND_CPU_FORWARD_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <type_traits>

#include "base/element.h"
#include "families/cpu/attend_in_place-inl.h"
#include "families/cpu/chunks-inl.h"
#include "families/cpu/gemm-inl.h"
#include "families/cpu/pack-inl.h"
#include "families/cpu/pieces-inl.h"
#include "families/cpu/probabilities-inl.h"
#include "families/cpu/target_data.h"
#include "families/cpu/values-inl.h"

HWY_BEFORE_NAMESPACE();
namespace heddle::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

namespace detail {

/// Dimensions of a panel of keys at a time. They stay in L1 while the rows of a tile pass over them, and a score in f32
/// is the sum of as short a chain: one chain of 128 errs by 1.4 times as much, beyond the criterion in rare rows.
inline constexpr std::int64_t kDepth = 64;

/// Whether the product with packed keys reads the queries where they stand.
template <class T>
bool ReadsQueriesInPlace(const Tile<T>& tile) {
  return tile.head.k != nullptr && tile.heads == 1 && tile.q.dtype == kDType<T> && tile.q_rest.columns == 0;
}

template <class T>
void LoadQueries(const Tile<T>& tile, const TileBuffers<T>& buffers) {
  T *row = buffers.queries, *factor = buffers.row_factors;
  for (std::int64_t head = 0; head < tile.heads; ++head) {
    const double descale = tile.q_descale ? tile.q_descale[head] : 1;
    factor = std::fill_n(factor, tile.at.rows, static_cast<T>(tile.q_scale * descale));
    if (ReadsQueriesInPlace(tile)) return;
    for (std::int64_t r = 0; r < tile.at.rows; ++r, row += buffers.q_stride) {
      const std::int64_t apart = tile.q_rest.columns, first = tile.qk_dim - apart;
      LoadRow(tile.q, r, head * tile.q_head_stride, first, row);
      if (apart > 0) LoadRow(tile.q_rest.rows, r, head * tile.q_rest_head_stride, apart, row + first);
      std::fill(row + tile.qk_dim, row + buffers.q_stride, T(0));
    }
  }
}

/// The state of rows that have seen no key.
template <class T>
void StartRows(const Tile<T>& tile, const TileBuffers<T>& buffers) {
  const std::int64_t rows = plan::round_up(tile.rows(), kColumnUnit);
  std::fill(buffers.row_maxima, buffers.row_maxima + rows, kMinusInfinity<T>);
  std::fill(buffers.row_scales, buffers.row_scales + rows, T(1));
  std::fill(buffers.row_sums, buffers.row_sums + tile.rows() * kSumLanes<T>, T(0));
}

/// S = Q K^T over the panels that the chunk touches.
template <class T>
void ComputeScores(const Tile<T>& tile, const PackedHead<T>& head, const TileBuffers<T>& buffers, const Chunk& chunk) {
  // Further pieces of the depth are added to the first by the product's row scales, which then have to be 1.
  if (tile.qk_dim > kDepth) std::fill(buffers.row_scales, buffers.row_scales + tile.rows(), T(1));
  const bool in_place = ReadsQueriesInPlace(tile);
  const T* queries = in_place ? static_cast<const T*>(tile.q.data) : buffers.queries;
  const std::int64_t stride = in_place ? tile.q.stride : buffers.q_stride;
  for (std::int64_t key = chunk.first; key < chunk.end;) {
    const std::int64_t panel = key / plan::kPanel * plan::kPanel;
    const std::int64_t end = std::min(chunk.first + chunk.columns(), panel + plan::kPanel);
    const T* keys = head.k + panel * tile.qk_dim + (key - panel);
    for (std::int64_t dim = 0; dim < tile.qk_dim; dim += kDepth) {
      Multiply(Product<T>{.a = queries + dim,
                          .a_stride = stride,
                          .b = keys + dim * plan::kPanel,
                          .c = buffers.scores + (key - chunk.first),
                          .c_stride = plan::kChunk,
                          .rows = tile.rows(),
                          .columns = end - key,
                          .depth = std::min(kDepth, tile.qk_dim - dim),
                          .scales = dim == 0 ? nullptr : buffers.row_scales,
                          .factors = dim + kDepth >= tile.qk_dim ? buffers.row_factors : nullptr});
    }
    key = end;
  }
}

/// One step, with values times `value_scale`.
template <class T>
void AttendChunk(const Tile<T>& tile, const TileBuffers<T>& buffers, const Chunk& chunk, const TileMod& mod,
                 T value_scale, bool first) {
  const PackedHead<T>& head = tile.head;
  ComputeScores(tile, head, buffers, chunk);
  ApplyMods(tile, buffers, chunk, mod);
  ColumnSet columns;
  const bool non_finite = FindNonFinite(tile, head, chunk, columns);
  if (non_finite) FindAttending(buffers.scores, tile.rows(), columns, buffers.attending);
  NormalizeScores(tile, buffers, chunk);
  if (non_finite) HideInfinite(buffers, tile.rows());
  AddValues(tile, head, buffers, chunk,
            ValueCases<T>{.non_finite = non_finite ? &columns : nullptr, .scale = value_scale}, first);
}

/// The chunks of packed keys that begin before key `end`. first: no chunk came before.
template <class T>
void AttendChunks(const Tile<T>& tile, const TileBuffers<T>& buffers, ChunkWalk& walk, std::int64_t end, T value_scale,
                  bool& first) {
  for (; !walk.done() && walk.chunk().begin < end; walk.next()) {
    AttendChunk(tile, buffers, walk.chunk(), walk.kind() == RunKind::full ? tile.full : tile.partial, value_scale,
                first);
    first = false;
  }
}

/// Keys [key_begin, key_end) of the tile, from rows that have seen none. False when no key was there.
template <class T>
bool AttendKeys(const Tile<T>& tile, const TileBuffers<T>& buffers, std::int64_t key_begin, std::int64_t key_end,
                T value_scale) {
  LoadQueries(tile, buffers);
  StartRows(tile, buffers);
  if (tile.head.k == nullptr) {
    const Care<T> care = {.on = value_scale != 1, .value_scale = value_scale};
    WalkEnd end = WalkInPlace(tile, buffers, key_begin, key_end, care);
    if (end == WalkEnd::not_finite && !care.on) {
      LoadQueries(tile, buffers);
      StartRows(tile, buffers);
      end = WalkInPlace(tile, buffers, key_begin, key_end, Care<T>{.on = true});
    }
    return end != WalkEnd::no_key;
  }
  bool first = true;
  ChunkWalk walk(tile.runs, tile.block_keys, key_begin, key_end);
  AttendChunks(tile, buffers, walk, key_end, value_scale, first);
  return !first;
}

/// A row's end: the factor of its accumulators, and its lse in two parts, m and ln l.
struct RowEnd {
  double factor, top, log_sum;
  bool empty;  // nothing attended: o is the factor, whatever was accumulated
};

template <class T>
RowEnd FinishRow(const Tile<T>& tile, std::int64_t head, double top, double sum) {
  if (tile.normalizer != Normalizer::softmax) return {tile.v_scale, 0, 0, false};
  const bool empty = top == kMinusInfinity<double> && sum == 0;
  if (tile.sinks) {
    const double sink = tile.sinks[head];
    if (empty && sink < std::numeric_limits<double>::infinity()) return {0, sink, 0, true};
    if (empty) return {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::quiet_NaN(), 0, true};
    const double both = std::isnan(sink) ? sink : std::max(top, sink);
    const double own = std::exp(top - both);
    sum = sum * own + std::exp(sink - both);
    return {tile.v_scale * own / sum, both, std::log(sum), false};
  }
  if (empty) return {0, kMinusInfinity<double>, 0, true};
  // The logarithm is skipped if lse is not asked for: one a row is worth it.
  return {tile.v_scale / sum, top, tile.lse.data != nullptr ? std::log(sum) : 0, false};
}

template <class T>
RowEnd FinishRow(const Tile<T>& tile, const TileBuffers<T>& buffers, std::int64_t i) {
  return FinishRow(tile, i / tile.at.rows, static_cast<double>(buffers.row_maxima[i]),
                   SumOf(buffers.row_sums + i * kSumLanes<T>));
}

/// NaN where a score was NaN or +inf: maxima know nothing of NaN, sums do.
template <class T>
T MaxScoreOf(const TileBuffers<T>& buffers, std::int64_t i) {
  const double sum = SumOf(buffers.row_sums + i * kSumLanes<T>);
  return std::isnan(sum) ? static_cast<T>(sum) : buffers.row_maxima[i];
}

/// to = row * factor, rounded; true when one of the products is not finite. `row` has room for whole vectors.
template <class T, class Storage>
bool ScaleRow(T* row, std::int64_t count, T factor, Storage* to) {
  const hn::ScalableTag<T> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const auto zero = hn::Zero(d);
  auto sum = zero;
  std::int64_t c = 0;
  for (; c + lanes <= count; c += lanes) {
    const auto product = hn::Mul(hn::Load(d, row + c), hn::Set(d, factor));
    sum = hn::MulAdd(product, zero, sum);
    if constexpr (std::is_same_v<T, Storage>) {
      hn::StoreU(product, d, to + c);
    } else {
      StoreReal(product, d, to + c);
    }
  }
  if (c < count) {
    const auto product = hn::Mul(hn::Load(d, row + c), hn::Set(d, factor));
    sum = hn::MulAdd(product, zero, sum);
    hn::Store(product, d, row + c);
    if constexpr (!std::is_same_v<T, Storage>) {
      RoundRow(row + c, count - c, to + c);
    } else if (to != row) {
      std::copy_n(row + c, count - c, to + c);
    }
  }
  return !hn::AllFalse(d, hn::IsNaN(sum));
}

struct ScaleRows {
  template <class T, class Storage>
  bool operator()(T* row, std::int64_t count, T factor, Storage* to) const {
    return ScaleRow(row, count, factor, to);
  }
};

/// True when a row holds something that is not finite though its factor is. scale_row: as ScaleRow.
template <class T, class Scale>
bool StoreRows(const Tile<T>& tile, const TileBuffers<T>& buffers, bool any_key, const Scale& scale_row) {
  bool overflowed = false;
  for (std::int64_t i = 0, head = 0, r = 0; i < tile.rows(); ++i, ++r) {
    if (r == tile.at.rows) r = 0, ++head;
    const RowEnd end = FinishRow(tile, buffers, i);
    T* row = buffers.accumulators + i * buffers.o_stride;
    const std::int64_t first = head * tile.o_head_stride;
    bool non_finite = false;
    if (end.empty || !any_key) {
      std::fill(row, row + tile.v_dim, end.empty ? static_cast<T>(end.factor) : T(0));
      StoreRow(row, tile.v_dim, tile.o, r, first);
    } else if ((tile.o.dtype == DType::f64) != std::is_same_v<T, double>) {  // rounded in a pass of its own
      non_finite = ScaleRow(row, tile.v_dim, static_cast<T>(end.factor), row);
      StoreRow(row, tile.v_dim, tile.o, r, first);
    } else {
      WithStorage<T>(tile.o.dtype, [&]<class Storage>(std::type_identity<Storage>) {
        auto* to = static_cast<Storage*>(tile.o.data) + r * tile.o.stride + first;
        non_finite = scale_row(row, tile.v_dim, static_cast<T>(end.factor), to);
      });
    }
    overflowed = overflowed || (non_finite && std::isfinite(end.factor));
    if (tile.lse.data != nullptr) {
      const T lse = static_cast<T>(end.top + end.log_sum);
      StoreRow(&lse, 1, tile.lse, r, head * tile.lse_head_stride);
      if (tile.lse_rest.data != nullptr) {
        // top - lse is exact where it matters: top and lse are then close to each other.
        const T rest =
            lse == kMinusInfinity<T> ? T(0) : static_cast<T>((end.top - static_cast<double>(lse)) + end.log_sum);
        StoreRow(&rest, 1, tile.lse_rest, r, head * tile.lse_rest_head_stride);
      }
    }
    if (tile.max_scores.data != nullptr) {
      const T largest = MaxScoreOf(buffers, i);
      StoreRow(&largest, 1, tile.max_scores, r, head * tile.max_scores_head_stride);
    }
  }
  return overflowed;
}

/// The factor of scaled values. Sums of p w v then stay in range up to its inverse times the largest T. Terms that
/// become subnormal are negligible beside a sum that overflowed.
template <class T>
inline constexpr T kValueScale = sizeof(T) == 8 ? T(0x1p-512) : T(0x1p-96F);

/// Elements of o that are not finite become those of the accumulators, which hold rows of scaled values. They are
/// scaled back in double, because an o of f64 may hold numbers beyond T.
template <class T>
void ReplaceNonFinite(const Tile<T>& tile, const TileBuffers<T>& buffers) {
  for (std::int64_t i = 0; i < tile.rows(); ++i) {
    const RowEnd end = FinishRow(tile, buffers, i);
    if (end.empty || !std::isfinite(end.factor)) continue;
    const T* row = buffers.accumulators + i * buffers.o_stride;
    const std::int64_t head = i / tile.at.rows, r = i % tile.at.rows;
    const std::int64_t first = head * tile.o_head_stride + r * tile.o.stride;
    base::with_storage_type(tile.o.dtype, [&]<class Storage>(std::type_identity<Storage>) {
      for (std::int64_t d = 0; d < tile.v_dim; ++d) {
        if (std::isfinite(base::decode(base::load_raw<Storage>(tile.o.data, first + d)))) continue;
        const double o = static_cast<double>(row[d]) * end.factor / static_cast<double>(kValueScale<T>);
        base::store_raw(tile.o.data, first + d, base::encode<Storage>(o));
      }
    });
  }
}

/// The tile's rows to o and lse, from the accumulators, and where a sum overflowed from the keys once more.
template <class T, class Scale = ScaleRows>
void Finish(const Tile<T>& tile, const TileBuffers<T>& buffers, bool any_key, const Scale& scale_row = {}) {
  if (!StoreRows(tile, buffers, any_key, scale_row)) return;
  AttendKeys(tile, buffers, 0, tile.at.sequence.kv_len, kValueScale<T>);
  ReplaceNonFinite(tile, buffers);
}

/// Tiles of packed keys, each of which has all of its keys.
template <class T>
void AttendTogether(const Bundle<T>& bundle) {
  const std::size_t count = bundle.tiles.size();
  std::optional<ChunkWalk> walks[plan::kMostBundle];
  bool first[plan::kMostBundle];
  for (std::size_t i = 0; i < count; ++i) {
    const Tile<T>& tile = bundle.tiles[i];
    LoadQueries(tile, bundle.buffers[i]);
    StartRows(tile, bundle.buffers[i]);
    walks[i].emplace(tile.runs, tile.block_keys, tile.key_begin, tile.key_end);
    first[i] = true;
  }
  WalkTogether(
      count, bundle.keys, [&](std::size_t i) -> const ChunkWalk& { return *walks[i]; },
      [&](std::size_t i, std::int64_t end) {
        AttendChunks(bundle.tiles[i], bundle.buffers[i], *walks[i], end, T(1), first[i]);
      });
  for (std::size_t i = 0; i < count; ++i) Finish(bundle.tiles[i], bundle.buffers[i], !first[i]);
}

}  // namespace detail

template <class T>
void Attend(const Bundle<T>& bundle) {
  if (bundle.tiles.size() > 1) return detail::AttendTogether(bundle);
  const Tile<T>& tile = bundle.tiles.front();
  const TileBuffers<T>& buffers = bundle.buffers.front();
  const bool any_key = detail::AttendKeys(tile, buffers, tile.key_begin, tile.key_end, T(1));
  if (tile.partials.pieces > 1) {
    detail::StorePartials(tile, buffers, any_key);
  } else {
    detail::Finish(tile, buffers, any_key);
  }
}

template <class T>
void MergePieces(const Tile<T>& tile, const TileBuffers<T>& buffers) {
  for (std::int64_t i = 0; i < tile.rows(); ++i) detail::MergeRow(tile, buffers, i);
  detail::Finish(tile, buffers, true);
}

}  // namespace heddle::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // the toggling guard
