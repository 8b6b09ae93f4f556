// One tile of attention, top to bottom: its queries against every run of keys that its row of the block mask lists, a
// chunk of at most plan::kChunk keys at a time, with the online softmax between the two products.
//
//   S [rows][kChunk] = Q K^T      score mod, or mask and score mod; -inf: does not attend
//   P = exp(S - max), in place    O [rows][Dv] = O exp(old max - max) + P V
//
// Keys and values come packed, or the tile packs each chunk for itself (plan/families/cpu_forward.h says when).
// What must not reach a result is kept out by selection, never by multiplication with 0: masked scores and the lanes
// beside a chunk become -inf, and where a panel of values holds a NaN or an infinity, the rows that nothing attends are
// replaced by 0 in a copy.

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

#include "backend/cpu/gemm-inl.h"
#include "backend/cpu/pack-inl.h"
#include "backend/cpu/softmax-inl.h"
#include "backend/cpu/tile.h"

HWY_BEFORE_NAMESPACE();
namespace heddle::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

namespace detail {

/// Columns of a chunk are computed in units of 64 bytes of f32, to which the tile evaluator's rows are aligned too.
inline constexpr std::int64_t kColumnUnit = 16;
/// Dimensions of a panel of keys at a time. They stay in L1 while the rows of a tile pass over them, and a score in f32
/// is the sum of as short a chain: one chain of 128 errs by 1.4 times as much, beyond the criterion in rare rows.
inline constexpr std::int64_t kDepth = 64;

/// The keys of one step. Score column c is key `first` + c; `first` is a multiple of kColumnUnit, so up to kColumnUnit
/// - 1 columns lie before `begin`.
struct Chunk {
  std::int64_t first, begin, end;
  std::int64_t columns() const { return plan::round_up(end - first, kColumnUnit); }
};

/// The chunk of [begin, end) that starts at `begin`; later ones start where a panel does.
inline Chunk NextChunk(std::int64_t begin, std::int64_t end) {
  const std::int64_t panel = begin / plan::kPanel * plan::kPanel;
  return {begin / kColumnUnit * kColumnUnit, begin, std::min(end, panel + plan::kChunk)};
}

template <class T>
void LoadQueries(const Tile<T>& tile, const TileBuffers<T>& buffers) {
  T *row = buffers.queries, *factor = buffers.row_factors;
  for (std::int64_t head = 0; head < tile.heads; ++head) {
    const double descale = tile.q_descale ? tile.q_descale[head] : 1;
    factor = std::fill_n(factor, tile.at.rows, static_cast<T>(tile.q_scale * descale));
    for (std::int64_t r = 0; r < tile.at.rows; ++r, row += buffers.q_stride) {
      LoadRow(tile.q, r, head * tile.q_head_stride, tile.qk_dim, row);
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

/// The chunk's own keys and values, packed; flags [kChunk / kPanel].
template <class T>
PackedHead<T> PackChunk(const Tile<T>& tile, const TileBuffers<T>& buffers, const Chunk& chunk, std::uint8_t* flags) {
  const std::int64_t first = chunk.first / plan::kPanel * plan::kPanel, end = chunk.end - first;
  Pack(PackKeys<T>{.from = SkipRows(tile.k, first),
                   .begin = 0,
                   .end = end,
                   .dim = tile.qk_dim,
                   .panels = buffers.chunk_keys,
                   .staging = buffers.staging});
  Pack(PackValues<T>{.from = SkipRows(tile.v, first),
                     .begin = 0,
                     .end = end,
                     .dim = tile.v_dim,
                     .keys = plan::kChunk,
                     .panels = buffers.chunk_values,
                     .flags = flags});
  return {.k = buffers.chunk_keys, .v = buffers.chunk_values, .v_flags = flags, .v_keys = plan::kChunk, .first = first};
}

/// S = Q K^T over the panels that the chunk touches.
template <class T>
void ComputeScores(const Tile<T>& tile, const PackedHead<T>& head, const TileBuffers<T>& buffers, const Chunk& chunk) {
  // Further pieces of the depth are added to the first by the product's row scales, which then have to be 1.
  if (tile.qk_dim > kDepth) std::fill(buffers.row_scales, buffers.row_scales + tile.rows(), T(1));
  for (std::int64_t key = chunk.first; key < chunk.end;) {
    const std::int64_t panel = key / plan::kPanel * plan::kPanel;
    const std::int64_t end = std::min(chunk.first + chunk.columns(), panel + plan::kPanel);
    const T* keys = head.k + (panel - head.first) * tile.qk_dim + (key - panel);
    for (std::int64_t dim = 0; dim < tile.qk_dim; dim += kDepth) {
      Multiply(Product<T>{.a = buffers.queries + dim,
                          .a_stride = buffers.q_stride,
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

/// The mods over the chunk's keys, and -inf in the columns beside them.
template <class T>
void ApplyMods(const Tile<T>& tile, const TileBuffers<T>& buffers, const Chunk& chunk, const TileMod& mod) {
  TilePosition at = tile.at;
  at.kv_first = chunk.first;
  at.columns = static_cast<int>(chunk.end - chunk.first);
  for (std::int64_t head = 0; head < tile.heads; ++head, ++at.h) {
    const std::int64_t offset = head * at.rows * plan::kChunk;
    T* scores = buffers.scores + offset;
    if (mod) mod.program->run(at, scores, scores, plan::kChunk, *mod.scratch);
    if (tile.weight)
      tile.weight.program->run(at, nullptr, buffers.weights + offset, plan::kChunk, *tile.weight.scratch);
  }
  const std::int64_t before = chunk.begin - chunk.first, after = chunk.columns();
  if (before == 0 && chunk.end == chunk.first + after) return;
  for (std::int64_t r = 0; r < tile.rows(); ++r) {
    T* row = buffers.scores + r * plan::kChunk;
    std::fill(row, row + before, kMinusInfinity<T>);
    std::fill(row + (chunk.end - chunk.first), row + after, kMinusInfinity<T>);
  }
}

/// Values of one panel for the chunk's keys, with 0 in the rows that nothing attends.
template <class T>
void CleanValues(const T* values, const T* attended, std::int64_t keys, T* to) {
  for (std::int64_t key = 0; key < keys; ++key, values += plan::kPanel, to += plan::kPanel) {
    if (attended[key] != 0) {
      std::copy(values, values + plan::kPanel, to);
    } else {
      std::fill(to, to + plan::kPanel, T(0));
    }
  }
}

/// True when the values of the chunk hold NaN or infinities and some of its keys are attended by no row of the tile;
/// `attended` then says which.
template <class T>
bool FindKeysToClean(const PackedHead<T>& head, const ScoreChunk<T>& scores, const Chunk& chunk, T* attended) {
  const std::uint8_t* first = head.v_flags + (chunk.begin - head.first) / plan::kPanel;
  const std::uint8_t* last = head.v_flags + (chunk.end - 1 - head.first) / plan::kPanel;
  const bool flagged = std::any_of(first, last + 1, [](std::uint8_t flag) { return flag != 0; });
  if (!flagged) return false;
  FindAttendedColumns(scores, attended);
  return std::any_of(attended + (chunk.begin - chunk.first), attended + (chunk.end - chunk.first),
                     [](T any) { return any == 0; });
}

/// O = scale O + P V over exactly the chunk's keys; attended: null, or which keys' values may be read.
template <class T>
void AddValues(const Tile<T>& tile, const PackedHead<T>& head, const TileBuffers<T>& buffers, const Chunk& chunk,
               const T* attended, bool first) {
  const std::int64_t offset = chunk.begin - chunk.first, keys = chunk.end - chunk.begin;
  for (std::int64_t dim = 0; dim < tile.v_dim; dim += plan::kPanel) {
    const T* values = head.v + dim * head.v_keys + (chunk.begin - head.first) * plan::kPanel;
    if (attended != nullptr) {
      CleanValues(values, attended + offset, keys, buffers.staging);
      values = buffers.staging;
    }
    Multiply(Product<T>{.a = buffers.scores + offset,
                        .a_stride = plan::kChunk,
                        .b = values,
                        .c = buffers.accumulators + dim,
                        .c_stride = buffers.o_stride,
                        .rows = tile.rows(),
                        .columns = plan::round_up(std::min(plan::kPanel, tile.v_dim - dim), kColumnUnit),
                        .depth = keys,
                        .scales = first ? nullptr : buffers.row_scales});
  }
}

template <class T>
void AttendChunk(const Tile<T>& tile, const TileBuffers<T>& buffers, const Chunk& chunk, const TileMod& mod,
                 bool first) {
  std::uint8_t flags[plan::kChunk / plan::kPanel];
  const PackedHead<T> head = tile.head.k != nullptr ? tile.head : PackChunk(tile, buffers, chunk, flags);
  ComputeScores(tile, head, buffers, chunk);
  ApplyMods(tile, buffers, chunk, mod);
  const ScoreChunk<T> scores{.scores = buffers.scores,
                             .weights = tile.weight ? buffers.weights : nullptr,
                             .rows = tile.rows(),
                             .columns = chunk.columns()};
  HWY_ALIGN T attended[plan::kChunk];
  const bool clean = FindKeysToClean(head, scores, chunk, attended);
  if (tile.normalizer == Normalizer::softmax) {
    SoftmaxChunk(scores, buffers.row_maxima, buffers.row_scales, buffers.row_sums);
  } else {
    NormalizeChunk(scores, tile.normalizer);
  }
  AddValues(tile, head, buffers, chunk, clean ? attended : nullptr, first);
}

template <class T>
double SumOf(const T* sums) {
  double sum = 0;
  for (std::int64_t i = 0; i < kSumLanes<T>; ++i) sum += static_cast<double>(sums[i]);
  return sum;
}

/// What a row's accumulators are multiplied by in the end, and its lse.
struct RowEnd {
  double factor, lse;
  bool empty;  // nothing attended: o is the factor, whatever was accumulated
};

template <class T>
RowEnd FinishRow(const Tile<T>& tile, std::int64_t head, double top, double sum) {
  if (tile.normalizer != Normalizer::softmax) return {tile.v_scale, 0, false};
  const bool empty = top == kMinusInfinity<double> && sum == 0;
  if (tile.sinks) {
    const double sink = tile.sinks[head];
    if (empty && sink < std::numeric_limits<double>::infinity()) return {0, sink, true};
    if (empty) return {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::quiet_NaN(), true};
    const double both = std::isnan(sink) ? sink : std::max(top, sink);
    const double own = std::exp(top - both);
    sum = sum * own + std::exp(sink - both);
    return {tile.v_scale * own / sum, both + std::log(sum), false};
  }
  if (empty) return {0, kMinusInfinity<double>, true};
  // A logarithm a row is worth skipping where nobody reads it.
  return {tile.v_scale / sum, tile.lse.data != nullptr ? top + std::log(sum) : 0, false};
}

template <class T>
void StoreRows(const Tile<T>& tile, const TileBuffers<T>& buffers, bool any_key) {
  const hn::ScalableTag<T> d;
  for (std::int64_t i = 0; i < tile.rows(); ++i) {
    const std::int64_t head = i / tile.at.rows, r = i % tile.at.rows;
    const RowEnd end =
        FinishRow(tile, head, static_cast<double>(buffers.row_maxima[i]), SumOf(buffers.row_sums + i * kSumLanes<T>));
    T* row = buffers.accumulators + i * buffers.o_stride;
    if (end.empty || !any_key) {
      std::fill(row, row + tile.v_dim, end.empty ? static_cast<T>(end.factor) : T(0));
    } else {
      const auto factor = hn::Set(d, static_cast<T>(end.factor));
      for (std::int64_t c = 0; c < tile.v_dim; c += static_cast<std::int64_t>(hn::Lanes(d))) {
        hn::Store(hn::Mul(hn::Load(d, row + c), factor), d, row + c);
      }
    }
    StoreRow(row, tile.v_dim, tile.o, r, head * tile.o_head_stride);
    if (tile.lse.data != nullptr) {
      const T lse = static_cast<T>(end.lse);
      StoreRow(&lse, 1, tile.lse, r, head * tile.lse_head_stride);
    }
  }
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

template <class T>
void Attend(const Tile<T>& tile, const TileBuffers<T>& buffers) {
  detail::LoadQueries(tile, buffers);
  detail::StartRows(tile, buffers);
  bool first = true;
  for (const Run& run : tile.runs) {
    const std::int64_t end = std::min(run.end * tile.block_keys, tile.key_end);
    for (std::int64_t begin = std::max(run.begin * tile.block_keys, tile.key_begin); begin < end;) {
      const detail::Chunk chunk = detail::NextChunk(begin, end);
      detail::AttendChunk(tile, buffers, chunk, run.kind == RunKind::full ? tile.full : tile.partial, first);
      first = false;
      begin = chunk.end;
    }
  }
  if (tile.partials.pieces > 1) {
    detail::StorePartials(tile, buffers, !first);
  } else {
    detail::StoreRows(tile, buffers, !first);
  }
}

template <class T>
void MergePieces(const Tile<T>& tile, const TileBuffers<T>& buffers) {
  for (std::int64_t i = 0; i < tile.rows(); ++i) detail::MergeRow(tile, buffers, i);
  detail::StoreRows(tile, buffers, true);
}

}  // namespace heddle::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // the toggling guard
