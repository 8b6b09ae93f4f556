// Attention of a tile that reads its keys and values in place: one walk over them, each row read once from where it
// stands. While one product of a chunk runs, it fetches the rows of the next.
//
// The first walk does not ask whether values are finite: a sum that met NaN or infinity stays so to its end. If a
// finished row holds one, the tile is computed again, with care: the same sums, bit by bit, but keys with a value that
// is not finite count 0 in them, and each row adds those that it attends by itself (values-inl.h says why).

// A guard that toggles, as Highway's per-target headers have.
#if defined(HEDDLE_CPU_ATTEND_IN_PLACE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEDDLE_CPU_ATTEND_IN_PLACE_INL_H_
#undef HEDDLE_CPU_ATTEND_IN_PLACE_INL_H_
#else
#define HEDDLE_CPU_ATTEND_IN_PLACE_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "families/cpu/chunks-inl.h"
#include "families/cpu/keys_in_place-inl.h"
#include "families/cpu/keys_in_quads-inl.h"
#include "families/cpu/pack-inl.h"
#include "families/cpu/probabilities-inl.h"
#include "families/cpu/row_addresses-inl.h"
#include "families/cpu/stored_rows-inl.h"
#include "families/cpu/target_data.h"
#include "families/cpu/values_in_place-inl.h"

HWY_BEFORE_NAMESPACE();
namespace heddle::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

namespace detail {

/// Rows of queries from which on values of 8 bits are staged, instead of converted for each block of rows again.
inline constexpr std::int64_t kStageRows = kWideRegisters ? 33 : 13;

/// Rows from which on keys are read in quads: of f32 and bf16, and of types whose conversion takes several instructions
/// for each block of four dimensions. Those are staged before it if registers hold few rows.
inline constexpr std::int64_t kLeastQuadRows = 7, kLeastConvertedRows = kWideRegisters ? 12 : 16;

/// Rows from which on products take so long that lines fetched a phase ahead come in time, where registers are few.
inline constexpr std::int64_t kFarRows = 16;

/// Whether a walk looks for values that are not finite, and the factor of all values if it does.
template <class T>
struct Care {
  bool on = false;
  T value_scale = 1;
};

/// Whether LoadPair() takes a NaN of this type for a number.
inline bool LosesNan(DType dtype) { return kConvertsF16 && dtype == DType::e4m3; }

/// How a tile's products read keys and values, and which of them are converted to T first (staged).
template <class T>
struct InPlaceWay {
  Care<T> care;
  bool quads;                  // scores come from Quads(), else from Dot()
  std::int64_t pair;           // elements of a pair in the storage's order
  bool stage_k;                // in the keys' own order
  bool restage_k;              // with care: staged in the order of pairs, since a product would not see NaN
  bool stage_v;                // in the values' own order
  std::int64_t k_dim, v_dim;   // of the rows that are read: padded if they are staged
  T k_scale = 1, v_scale = 1;  // kStoredScale of what is not staged
  bool near;                   // rows are read once, where they stand: they are fetched a short way ahead
  Fetches fetches;             // pages: memory limits the speed

  InPlaceWay(const Tile<T>& tile, const Care<T>& how) : care(how) {
    const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(hn::ScalableTag<T>())), rows = tile.rows();
    const bool converts = tile.k.dtype != kDType<T> && tile.k.dtype != DType::bf16;
    quads = kQuadRows > 1 &&
            (converts ? rows >= kLeastConvertedRows : rows >= kLeastQuadRows || rows == kQuadRows * kQuadVectors);
    pair = quads ? 2 * kQuadDims<T> : 2 * lanes;
    stage_k = tile.k_rest.columns > 0 || tile.qk_dim % pair != 0 || (quads && converts && !kWideRegisters);
    restage_k = care.on && !stage_k && LosesNan(tile.k.dtype);
    stage_v = care.on || (rows >= kStageRows && size_of(tile.v.dtype) == 1) || tile.v_dim % (2 * lanes) != 0;
    near = !stage_k && !stage_v && (kWideRegisters || rows < kFarRows);
    const bool by_pages = near && 2 * rows <= size_of(tile.k.dtype) && FetchesByItself();
    fetches = by_pages ? Fetches::pages : Fetches::lines;
    k_dim = plan::round_up(tile.qk_dim, stage_k ? 2 * lanes : pair);
    v_dim = plan::round_up(tile.v_dim, 2 * lanes);
    if (!stage_k) k_scale = StoredScale(tile.k.dtype);
    if (!stage_v) v_scale = StoredScale(tile.v.dtype);
  }

  static T StoredScale(DType dtype) {
    T scale = 1;
    WithStorage<T>(dtype, [&]<class Storage>(std::type_identity<Storage>) { scale = kStoredScale<Storage>; });
    return scale;
  }
};

/// Row `column` as T in its own order, padded with 0, NaN of e4m3 as NaN if `exact`.
template <class T>
void StageRow(const RowAddresses& from, DType dtype, std::int64_t column, std::int64_t dim, std::int64_t padded,
              bool exact, T* to) {
  WithStorage<T>(dtype, [&]<class Storage>(std::type_identity<Storage>) {
    if (!exact) return StageRow(from.at<Storage>(column), dim, padded, to);
    WidenRow(from.at<Storage>(column), dim, to);
    std::fill(to + dim, to + padded, T(0));
  });
}

/// Rows [0, count) of `from` staged, [count][padded + gap].
template <class T>
RowAddresses StageRows(const RowAddresses& from, DType dtype, std::int64_t count, std::int64_t dim, std::int64_t padded,
                       std::int64_t gap, bool exact, T* to) {
  RowAddresses staged;
  staged.bytes = padded * static_cast<std::int64_t>(sizeof(T));
  for (std::int64_t i = 0; i < count; ++i, to += padded + gap) {
    StageRow(from, dtype, i, dim, padded, exact, to);
    staged.row[i] = reinterpret_cast<const std::byte*>(to);
  }
  std::fill(staged.row + count, staged.row + plan::kChunk, staged.row[count - 1]);
  return staged;
}

/// Keys of e4m3 with their NaN as LoadPair() loads them: [count][dim], in its order, still to be multiplied by
/// kStoredScale.
inline RowAddresses RestageKeys(const RowAddresses& from, std::int64_t count, std::int64_t dim, std::int64_t pair,
                                float* row, float* to) {
  const RowAddresses staged = StageRows(from, DType::e4m3, count, dim, dim, 0, true, to);
  for (std::int64_t i = 0; i < count; ++i, to += dim) {
    for (std::int64_t d = 0; d < dim; ++d) row[d] = to[d] / kStoredScale<e4m3>;
    OrderRow(row, dim, pair / 2, true, to);
  }
  return staged;
}

/// True when rows of e4m3 hold a NaN, which only a walk with care sees.
inline bool HasNan(const RowAddresses& rows, DType dtype, std::int64_t first, std::int64_t last) {
  if (!LosesNan(dtype)) return false;
  return HasNan([&](std::int64_t i) { return rows.at<e4m3>(i); }, first, last, rows.bytes);
}

/// The columns of keys one of whose values is NaN or infinite. `row`: scratch of v_dim, padded.
template <class T>
bool FindNonFinite(const Tile<T>& tile, const RowAddresses& values, const Chunk& chunk, T* row, ColumnSet& columns) {
  const std::int64_t padded = plan::round_up(tile.v_dim, kColumnUnit);
  bool any = false;
  for (std::int64_t i = chunk.begin - chunk.first; i < chunk.end - chunk.first; ++i) {
    StageRow(values, tile.v.dtype, i, tile.v_dim, padded, true, row);
    if (!HasNonFinite(row, padded)) continue;
    columns.add(i);
    any = true;
  }
  return any;
}

/// The queries as the products take them, in the order of the keys.
template <class T>
void ArrangeQueries(const Tile<T>& tile, const TileBuffers<T>& buffers, const InPlaceWay<T>& way) {
  const std::int64_t rows = tile.rows();
  bool even_odd = false;
  if (!way.stage_k) {
    WithStorage<T>(tile.k.dtype, [&]<class Storage>(std::type_identity<Storage>) { even_odd = kEvenOdd<Storage>; });
  }
  for (std::int64_t r = 0; r < rows; ++r) buffers.row_factors[r] *= way.k_scale;
  if (way.quads) {
    std::fill(buffers.row_factors + rows, buffers.row_factors + plan::round_up(rows, kQuadRows), T(0));
    return ArrangeQuads(buffers.queries, buffers.q_stride, rows, way.k_dim, even_odd, buffers.quad_queries);
  }
  for (std::int64_t r = 0; even_odd && r < rows; ++r) {
    T* row = buffers.queries + r * buffers.q_stride;
    std::copy_n(row, way.k_dim, buffers.staging);
    OrderRow(buffers.staging, way.k_dim, way.pair / 2, true, row);
  }
}

/// S = Q K^T over the chunk's columns.
template <class T>
void ScoresInPlace(const Tile<T>& tile, const TileBuffers<T>& buffers, const InPlaceWay<T>& way,
                   const RowAddresses& stored, const Chunk& chunk, bool& lost_nan, Ahead& ahead) {
  const std::int64_t count = chunk.end - chunk.first;
  const bool staged = way.stage_k || way.restage_k;
  RowAddresses staged_keys;
  if (way.stage_k) {
    const std::int64_t apart = tile.k_rest.columns, first = tile.qk_dim - apart;
    staged_keys = StageRows(stored, tile.k.dtype, count, first, way.k_dim, 0, way.care.on, buffers.chunk_keys);
    for (std::int64_t i = 0; apart > 0 && i < count; ++i) {
      LoadRow(tile.k_rest.rows, chunk.first + i, 0, apart, buffers.chunk_keys + i * way.k_dim + first);
    }
  } else if constexpr (std::is_same_v<T, float>) {
    if (way.restage_k) {
      staged_keys = RestageKeys(stored, count, way.k_dim, way.pair, buffers.staging, buffers.chunk_keys);
    }
  }
  const RowAddresses& keys = staged ? staged_keys : stored;
  const DType dtype = staged ? kDType<T> : tile.k.dtype;
  const std::int64_t block = way.quads ? plan::kQuadKeys : chunk.columns();
  for (std::int64_t first = 0; first < chunk.columns(); first += block) {
    const std::int64_t last = std::min(first + block, chunk.columns());
    WithStorage<T>(dtype, [&]<class Storage>(std::type_identity<Storage>) {
      if (way.quads) {
        const QuadProduct<T> product = {.q = buffers.quad_queries,
                                        .rows = tile.rows(),
                                        .keys = &keys,
                                        .dim = way.k_dim,
                                        .factors = buffers.row_factors,
                                        .scores = buffers.scores,
                                        .lost_nan = &lost_nan};
        if constexpr (kQuadRows >= 2) return Quads<Storage>(product, first, last, ahead);
      }
      const ScoreProduct<T> product = {.q = buffers.queries,
                                       .q_stride = buffers.q_stride,
                                       .keys = &keys,
                                       .dim = way.k_dim,
                                       .factors = buffers.row_factors,
                                       .scores = buffers.scores,
                                       .lost_nan = &lost_nan};
      Dot<Storage>(product, 0, tile.rows(), first, last, ahead);
    });
  }
  if (!ahead.near()) ahead.fetch_lines(ahead.lines());
}

/// A walk with care changes a row of values that was staged for a product.
template <class T>
void CareForRow(const Care<T>& care, const ColumnSet& left_out, std::int64_t column, std::int64_t count, T* row) {
  const T factor = left_out.has(column) ? 0 : care.value_scale;
  for (std::int64_t i = 0; i < count; ++i) row[i] = factor == 0 ? 0 : row[i] * factor;
}

/// Adds to each row the values that a product left out and the row attends.
template <class T>
void AddLeftOut(const Tile<T>& tile, const TileBuffers<T>& buffers, const Care<T>& care, const RowAddresses& values,
                const ColumnSet& left_out) {
  ForEachColumn(left_out.words, [&](std::int64_t column) {
    T* value = buffers.staging;
    StageRow(values, tile.v.dtype, column, tile.v_dim, tile.v_dim, true, value);
    for (std::int64_t r = 0; r < tile.rows(); ++r) {
      if ((buffers.attending[r * kColumnWords + column / 64] >> column % 64 & 1) == 0) continue;
      const T p = HiddenWeight(buffers, r, column, buffers.scores[r * plan::kChunk + column]);
      T* o = buffers.accumulators + r * buffers.o_stride;
      for (std::int64_t d = 0; d < tile.v_dim; ++d) o[d] += p * (value[d] * care.value_scale);
    }
  });
}

/// O = scale O + P V.
template <class T>
void ValuesInPlace(const Tile<T>& tile, const TileBuffers<T>& buffers, const InPlaceWay<T>& way,
                   const RowAddresses& stored, const Chunk& chunk, const ColumnSet& left_out, bool first_keys,
                   bool& lost_nan, Ahead& ahead) {
  RowAddresses staged;
  if (way.stage_v) {
    const std::int64_t count = chunk.end - chunk.first;
    staged = StageRows(stored, tile.v.dtype, count, tile.v_dim, way.v_dim, plan::kStagedGap, way.care.on,
                       buffers.chunk_values);
    for (std::int64_t i = 0; way.care.on && i < count; ++i) {
      CareForRow(way.care, left_out, i, way.v_dim, buffers.chunk_values + i * (way.v_dim + plan::kStagedGap));
    }
  }
  const ValueProduct<T> product = {.p = buffers.scores,
                                   .values = way.stage_v ? &staged : &stored,
                                   .first = chunk.begin - chunk.first,
                                   .last = chunk.end - chunk.first,
                                   .dim = way.v_dim,
                                   .scales = first_keys ? nullptr : buffers.row_scales,
                                   .stored_scale = way.v_scale,
                                   .o = buffers.accumulators,
                                   .o_stride = buffers.o_stride,
                                   .sums = way.stage_v ? nullptr : buffers.chunk_values,
                                   .lost_nan = &lost_nan};
  WithStorage<T>(way.stage_v ? kDType<T> : tile.v.dtype, [&]<class Storage>(std::type_identity<Storage>) {
    AddValuesInPlace<Storage>(product, tile.rows(), ahead);
  });
}

/// Accumulators to the order of their dimensions. False when one of them is not finite.
template <class T>
bool FinishAccumulators(const Tile<T>& tile, const TileBuffers<T>& buffers, const InPlaceWay<T>& way) {
  const bool ordered = way.stage_v;
  const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(hn::ScalableTag<T>()));
  bool finite = true;
  for (std::int64_t r = 0; r < tile.rows(); ++r) {
    T* row = buffers.accumulators + r * buffers.o_stride;
    if (!ordered) {
      WithStorage<T>(tile.v.dtype, [&]<class Storage>(std::type_identity<Storage>) {
        if constexpr (!kEvenOdd<Storage>) return;
        std::copy_n(row, way.v_dim, buffers.staging);
        OrderRow(buffers.staging, way.v_dim, lanes, false, row);
      });
    }
    finite = finite && !HasNonFinite(row, way.v_dim);
  }
  return finite;
}

/// How a walk ended.
enum class WalkEnd : std::uint8_t { no_key, finished, not_finite };

/// Keys [key_begin, key_end) of the tile, whose queries are loaded and whose rows have seen no key. not_finite: the
/// result of a row is not finite. It needs care, or had it.
template <class T>
WalkEnd WalkInPlace(const Tile<T>& tile, const TileBuffers<T>& buffers, std::int64_t key_begin, std::int64_t key_end,
                    const Care<T>& care) {
  const InPlaceWay<T> way(tile, care);
  ChunkWalk walk(tile.runs, tile.block_keys, key_begin, key_end);
  if (walk.done()) return WalkEnd::no_key;
  ArrangeQueries(tile, buffers, way);
  RowAddresses keys, values;
  const auto find_keys = [&](const Chunk& chunk) {
    FindRows(tile.k, tile.qk_dim - tile.k_rest.columns, chunk.first, chunk.end - chunk.first, keys);
  };
  find_keys(walk.chunk());
  Ahead ahead(keys, walk.chunk().end - walk.chunk().first, way.near, way.fetches);
  if (way.near) ahead.fetch_lines<true>(kAheadLines);
  for (bool first = true; !walk.done(); first = false) {
    const Chunk chunk = walk.chunk();
    const std::int64_t begin = chunk.begin - chunk.first, end = chunk.end - chunk.first;
    FindRows(tile.v, tile.v_dim, chunk.first, end, values);
    bool lost_nan = way.stage_k && !care.on && HasNan(keys, tile.k.dtype, 0, end);
    ahead.then(values, end);
    ScoresInPlace(tile, buffers, way, keys, chunk, lost_nan, ahead);
    ahead.enter(values, end);
    ApplyMods(tile, buffers, chunk, walk.kind() == RunKind::full ? tile.full : tile.partial);
    ColumnSet left_out;
    const bool non_finite = care.on && FindNonFinite(tile, values, chunk, buffers.staging, left_out);
    if (non_finite) FindAttending(buffers.scores, tile.rows(), left_out, buffers.attending);
    NormalizeScores(tile, buffers, chunk);
    if (non_finite) HideInfinite(buffers, tile.rows());
    lost_nan = lost_nan || (way.stage_v && !care.on && HasNan(values, tile.v.dtype, begin, end));
    walk.next();
    if (!walk.done()) {
      find_keys(walk.chunk());
      ahead.then(keys, walk.chunk().end - walk.chunk().first);
    }
    ValuesInPlace(tile, buffers, way, values, chunk, left_out, first, lost_nan, ahead);
    if (lost_nan) return WalkEnd::not_finite;
    ahead.enter(keys, walk.done() ? 0 : walk.chunk().end - walk.chunk().first);
    if (non_finite) AddLeftOut(tile, buffers, care, values, left_out);
  }
  return FinishAccumulators(tile, buffers, way) ? WalkEnd::finished : WalkEnd::not_finite;
}

}  // namespace detail

}  // namespace heddle::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // the toggling guard
