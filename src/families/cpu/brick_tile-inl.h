// A tile of attention whose two products AMX computes, from keys and values in bricks or, for few queries, from where
// they stand (bricks_in_place-inl.h). The frame is that of cpu_forward-inl.h: chunks of keys, mods, masks and row
// statistics in f32. Differences:
// - Packed in bricks, a chunk begins where a brick of values does. Scores before its first key are -inf.
// - Weights are rounded to bf16, as plain attention in bf16 rounds them. Those of row r overwrite the first half of
//   scores[r]. BrickSums has the sums of rows.
// - Once a row has seen a key, its maximum may stay as it is: weights of larger scores exceed 1. No row is rescaled
//   while row sums stay below kMostSum. Where one does not, the chunk is computed once more.
// - Unless lse asks for exact sums, exponentials of such chunks are coarser than f32, and finer than bf16.
// - In place, the first walk learns of values that are not finite too late to keep them out of a product. It then ends,
//   and a second walk, with care, looks at each chunk's values before its weights: its sums are equal bit by bit.
// - Tiles whose sums overflow are computed in f32 in place: scaled values would not be exact in bf16.

// A guard that toggles, as Highway's per-target headers have.
#if defined(HEDDLE_CPU_BRICK_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEDDLE_CPU_BRICK_TILE_INL_H_
#undef HEDDLE_CPU_BRICK_TILE_INL_H_
#else
#define HEDDLE_CPU_BRICK_TILE_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "families/cpu/brick_pipeline-inl.h"
#include "families/cpu/brick_products-inl.h"
#include "families/cpu/brick_special_values-inl.h"
#include "families/cpu/brick_tile_rows-inl.h"
#include "families/cpu/brick_weights-inl.h"
#include "families/cpu/bricks-inl.h"
#include "families/cpu/bricks_in_place-inl.h"
#include "families/cpu/cpu_forward-inl.h"

#if HWY_ARCH_X86_64 && HWY_TARGET == HWY_AVX3
HWY_BEFORE_NAMESPACE();
namespace heddle::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

namespace detail {

/// A tile on its way through its chunks.
template <class Registers>
class BrickTile {
 public:
  BrickTile(Registers& registers, const Tile<float>& tile, const TileBuffers<float>& buffers)
      : registers_(registers),
        tile_(tile),
        buffers_(buffers),
        walk_(first_walk()),
        k_steps_(plan::round_up(tile.qk_dim, kBrickDepth) / kBrickDepth),
        v_columns_(plan::round_up(tile.v_dim, kBrickColumns) / kBrickColumns),
        is_in_place_(tile.bricks.k == nullptr),
        in_place_(registers_, tile, buffers) {
    if (is_in_place_) v_columns_ = in_place_.v_columns();
  }

  void start() {
    load_queries();
    if (is_in_place_) in_place_.start_queries();
    start_rows();
  }
  const ChunkWalk& walk() const { return walk_; }
  /// The chunks that begin before key `end`. In place, it has to be behind all keys.
  void run(std::int64_t end) {
    if (attend_to(end, false)) return;
    start_rows();
    attend_to(end, true);
  }
  /// False when there was no key.
  bool finish() {
    if (tile_.normalizer == Normalizer::softmax) finish_sums();
    for (std::int64_t r = 0; is_in_place_ && !first_ && r < tile_.rows(); ++r) {
      OrderColumns(buffers_.accumulators + r * buffers_.o_stride, v_columns_ * kBrickColumns);
    }
    return !first_;
  }

 private:
  static constexpr std::int64_t kRowBytes = plan::kChunk * sizeof(float);

  ChunkWalk first_walk() const { return {tile_.runs, tile_.block_keys, tile_.key_begin, tile_.key_end}; }

  void load_queries() {
    queries_ = is_in_place_ ? CopyQueries(tile_, buffers_) : FindQueries(tile_, buffers_);
    float* factor = buffers_.row_factors;
    for (std::int64_t head = 0; head < tile_.heads; ++head) {
      const double descale = tile_.q_descale ? tile_.q_descale[head] : 1;
      factor = std::fill_n(factor, tile_.at.rows, static_cast<float>(tile_.q_scale * descale));
    }
    can_fuse_ = tile_.normalizer == Normalizer::softmax &&
                std::all_of(buffers_.row_factors, factor, [](float f) { return f > 0 && std::isfinite(f); });
  }

  /// Rows that have seen no key, before the first one.
  void start_rows() {
    StartRows(tile_, buffers_);
    sums_ = room(0), new_sums_ = room(1);
    if (exact()) std::fill_n(sums_.exact, tile_.rows() * 16, 0.0F);
    std::fill_n(sums_.rounded, tile_.rows() * 16, 0.0F);
    first_ = true, kept_ = 0;
    walk_ = first_walk();
    if (is_in_place_ && !walk_.done()) in_place_.start_walk(walk_.chunk());
  }
  /// False, only without care: values in place are not all finite.
  bool attend_to(std::int64_t end, bool care) {
    const auto more = [&] { return !walk_.done() && walk_.chunk().begin < end; };
    while (more()) {
      if (!is_in_place_) run_pipeline(end);
      if (!more()) break;
      const TileMod& mod = walk_.kind() == RunKind::full ? tile_.full : tile_.partial;
      Chunk chunk = walk_.chunk(is_in_place_ ? plan::kChunk : kPipelineKeys);
      walk_.next(chunk);
      if (is_in_place_) {
        if (!attend_in_place(chunk, mod, walk_, care)) return false;
      } else {
        chunk.first = chunk.begin / kBrickDepth * kBrickDepth;
        attend(chunk, mod);
      }
      first_ = false;
    }
    return true;
  }

  /// Takes as many whole chunks as need no care.
  void run_pipeline(std::int64_t end) {
    if (tile_.normalizer != Normalizer::softmax || tile_.max_scores.data != nullptr) return;
    if (k_steps_ * v_columns_ == 0 || !(first_ || kept_ == all_rows() || others_are_unseen())) return;
    const PipelineStart start = {
        .keys = key_product({0, 0, kPipelineKeys}),
        .values = value_product(0, 0, kPipelineKeys, {tile_.bricks.v, v_columns_, 0, v_columns_}),
        .walk = PipelineWalk(tile_, walk_, end),
        .mods = ChunkMods(tile_, buffers_),
        .scores = {.scores = buffers_.scores,
                   .weights = buffers_.weights,
                   .factors = can_fuse_ ? buffers_.row_factors : nullptr,
                   .rows = tile_.rows(),
                   .columns = kPipelineKeys},
        .factors = buffers_.row_factors,
        .weighted = static_cast<bool>(tile_.weight),
        .first = first_};
    std::int64_t done = RunPipeline<Registers>(registers_, start, buffers_.row_maxima, sums_, new_sums_);
    if (done == 0) return;
    for (; done > 0; --done) walk_.skip(walk_.chunk().begin + kPipelineKeys);
    first_ = false;
    find_kept();
  }

  void attend(const Chunk& chunk, const TileMod& mod) {
    const bool scaled = mod || !can_fuse_;  // before anything reads scores
    compute_scores(chunk, mod, scaled, false);
    const std::byte* bricks = tile_.bricks.v + chunk.first / kBrickDepth * v_columns_ * kBrickBytes;
    ColumnSet columns;
    const bool non_finite =
        MayHoldSpecialValues(tile_.bricks.v_flags, chunk) && FindSpecialValues(chunk, bricks, v_columns_, columns);
    if (non_finite) FindAttendingRows(tile_, buffers_, chunk, columns);
    turn_to_weights(chunk, mod, scaled);
    if (non_finite) return add_special_values(chunk, bricks, columns);
    add_values(0, chunk.end - chunk.first, {bricks, v_columns_, 0, v_columns_});
  }

  bool attend_in_place(const Chunk& chunk, const TileMod& mod, const ChunkWalk& next, bool care) {
    const bool scaled = mod || !can_fuse_;
    const std::int64_t keys = chunk.end - chunk.first, end = plan::round_up(keys, kBrickDepth);
    in_place_.start_chunk(chunk);
    compute_scores(chunk, mod, scaled, false);
    ColumnSet columns;
    bool non_finite = false;
    if (care && in_place_.pack_values(chunk, 0, end)) {
      non_finite = FindSpecialValues(chunk, in_place_.value_bricks(), v_columns_, columns);
      FindAttendingRows(tile_, buffers_, chunk, columns);
    }
    turn_to_weights(chunk, mod, scaled);
    in_place_.start_values(chunk, next);
    if (non_finite) {
      add_special_values(chunk, in_place_.value_bricks(), columns);
    } else if (care) {
      add_values(0, keys, {in_place_.value_bricks(), v_columns_, 0, v_columns_});
    } else {
      for (std::int64_t first = 0; first < end; first += kPartKeys) {
        const std::int64_t part_end = std::min(first + kPartKeys, end);
        if (in_place_.pack_values(chunk, first, part_end)) return false;
        add_values(first, part_end, {in_place_.value_bricks(), v_columns_, 0, v_columns_});
        first_ = false;
      }
    }
    in_place_.end_chunk(next);
    return true;
  }

  void turn_to_weights(const Chunk& chunk, const TileMod& mod, bool scaled) {
    if (tile_.normalizer == Normalizer::softmax) return weigh(chunk, mod, scaled);
    NormalizeScores(tile_, buffers_, chunk);
    round_weights(chunk);
  }

  /// `again`: for the second time.
  void compute_scores(const Chunk& chunk, const TileMod& mod, bool scaled, bool again) {
    is_in_place_ ? in_place_.compute_scores(chunk, again) : multiply_keys(chunk);
    if (scaled) scale_scores(buffers_.scores, chunk);
    ApplyMods(tile_, buffers_, chunk, mod);
  }

  void multiply_keys(const Chunk& chunk) { MultiplyBricks(registers_, key_product(chunk), tile_.rows()); }
  BrickProduct key_product(const Chunk& chunk) const {
    return {.a = queries_.rows,
            .a_stride = queries_.stride * 2,
            .b = tile_.bricks.k + chunk.first / kBrickColumns * k_steps_ * kBrickBytes,
            .b_column = k_steps_ * kBrickBytes,
            .b_step = kBrickBytes,
            .c = buffers_.scores,
            .c_stride = kRowBytes,
            .columns = chunk.columns() / kBrickColumns,
            .steps = k_steps_,
            .add = false};
  }

  void scale_scores(float* scores, const Chunk& chunk) const {
    for (std::int64_t r = 0; r < tile_.rows(); ++r) {
      const __m512 factor = _mm512_set1_ps(buffers_.row_factors[r]);
      float* row = scores + r * plan::kChunk;
      for (std::int64_t i = 0; i < chunk.columns(); i += 16) {
        _mm512_store_ps(row + i, _mm512_mul_ps(_mm512_load_ps(row + i), factor));
      }
    }
  }

  std::uint16_t* weights_of(std::int64_t row) const { return WeightsOf(buffers_, row); }

  /// Weights in f32 to bf16, in place, and 0 up to whole bricks.
  HEDDLE_AMX void round_weights(const Chunk& chunk) const {
    for (std::int64_t r = 0; r < tile_.rows(); ++r) {
      const float* row = buffers_.scores + r * plan::kChunk;
      for (std::int64_t i = 0; i < chunk.columns(); i += 32) {
        const __m512 high = i + 16 < chunk.columns() ? _mm512_load_ps(row + i + 16) : _mm512_setzero_ps();
        _mm512_store_si512(weights_of(r) + i, Registers::round(_mm512_load_ps(row + i), high));
      }
    }
  }

  /// If lse asks for exact sums. There are two pairs of sums, which take turns.
  bool exact() const { return tile_.lse.data != nullptr; }
  BrickSums room(std::int64_t index) const {
    float* sums = buffers_.brick_sums + index * 2 * tile_.rows() * 16;
    return {exact() ? sums : nullptr, sums + tile_.rows() * 16};
  }

  /// Rows end with exact sums if there are any, and else with rounded ones. O is as if rounded ones divided it.
  void finish_sums() const {
    std::copy_n(exact() ? sums_.exact : sums_.rounded, tile_.rows() * 16, buffers_.row_sums);
    for (std::int64_t r = 0; exact() && !first_ && r < tile_.rows(); ++r) {
      const double ratio = SumOf(sums_.exact_of(r)) / SumOf(sums_.rounded_of(r));
      if (std::isfinite(ratio)) scale_row(r, static_cast<float>(ratio));
    }
  }

  /// Scores of a softmax to weights. `scaled`: the scores have been multiplied by their factors.
  void weigh(const Chunk& chunk, const TileMod& mod, bool scaled) {
    BrickScores scores = {.scores = buffers_.scores,
                          .weights = tile_.weight ? buffers_.weights : nullptr,
                          .factors = scaled ? nullptr : buffers_.row_factors,
                          .rows = tile_.rows(),
                          .columns = chunk.columns()};
    // Each row decides for itself, so its bits do not depend on what others attend.
    std::uint64_t taken = all_rows() & ~kept_;
    if (mod && kept_ != 0) {
      taken |= rows_that_grow(scores);
      scores.of = kept_ & ~taken;
      KeepMaxima<Registers>(scores, buffers_.row_maxima, sums_, sums_);
      if (taken == 0) return;
    } else if (kept_ != 0) {
      scores.of = kept_;
      const std::uint64_t failed = KeepMaxima<Registers>(scores, buffers_.row_maxima, sums_, new_sums_);
      if ((failed | taken) == 0) return std::swap(sums_, new_sums_);
      if (failed == 0) {
        take_new_sums();
      } else {
        compute_scores(chunk, mod, scaled, true);
        // Rows that take their maxima wait for them below.
        scores.of = kept_ & ~failed;
        KeepMaxima<Registers>(scores, buffers_.row_maxima, sums_, sums_);
        taken |= failed;
      }
    }
    scores.of = taken;
    TakeMaxima<Registers>(scores, buffers_.row_maxima, buffers_.row_scales, sums_);
    if (!first_) rescale_rows();
    find_kept();
  }

  /// Whether rows whose maxima may not stay have seen no key.
  bool others_are_unseen() const {
    const float* maxima = buffers_.row_maxima;
    return std::all_of(maxima, maxima + tile_.rows(),
                       [](float maximum) { return MayStay(maximum) || maximum == kMinusInfinity<float>; });
  }
  void find_kept() {
    kept_ = 0;
    for (std::int64_t r = 0; tile_.max_scores.data == nullptr && r < tile_.rows(); ++r) {
      if (MayStay(buffers_.row_maxima[r])) kept_ |= std::uint64_t{1} << r;
    }
  }

  /// A bit for each row that has kept its maximum, and whose scores now exceed it by too much.
  std::uint64_t rows_that_grow(const BrickScores& scores) const {
    std::uint64_t grown = 0;
    for (std::int64_t first = 0; first < tile_.rows(); first += 16) {
      __m512 found;
      grown |= std::uint64_t{RowsThatGrow(scores, first, buffers_.row_maxima, found)} << first;
    }
    return grown & kept_;
  }

  std::uint64_t all_rows() const { return ~std::uint64_t{0} >> (64 - tile_.rows()); }
  /// Copies the sums of rows that have kept their maxima.
  void take_new_sums() const {
    for (std::int64_t r = 0; r < tile_.rows(); ++r) {
      if ((kept_ >> r & 1) == 0) continue;
      if (exact()) std::copy_n(new_sums_.exact_of(r), 16, sums_.exact_of(r));
      std::copy_n(new_sums_.rounded_of(r), 16, sums_.rounded_of(r));
    }
  }

  void rescale_rows() const {
    for (std::int64_t r = 0; r < tile_.rows(); ++r) {
      if (buffers_.row_scales[r] != 1) scale_row(r, buffers_.row_scales[r]);
    }
  }
  void scale_row(std::int64_t r, float scale) const {
    float* row = buffers_.accumulators + r * buffers_.o_stride;
    for (std::int64_t i = 0; i < v_columns_ * kBrickColumns; i += 16) {
      _mm512_store_ps(row + i, _mm512_mul_ps(_mm512_load_ps(row + i), _mm512_set1_ps(scale)));
    }
  }

  /// O += P V over the chunk's columns [first, end), `first` a multiple of kBrickDepth.
  void add_values(std::int64_t first, std::int64_t end, const ValueBricks& bricks) {
    for (std::int64_t row = 0; row < tile_.rows(); row += plan::kUnitRows) {
      MultiplyBricks(registers_, value_product(row, first, end, bricks), std::min(tile_.rows() - row, plan::kUnitRows));
    }
  }
  BrickProduct value_product(std::int64_t row, std::int64_t first, std::int64_t end, const ValueBricks& bricks) const {
    return {.a = weights_of(row) + first,
            .a_stride = kRowBytes,
            .b = bricks.data,
            .b_column = kBrickBytes,
            .b_step = bricks.step * kBrickBytes,
            .c = buffers_.accumulators + row * buffers_.o_stride + bricks.first * kBrickColumns,
            .c_stride = buffers_.o_stride * static_cast<std::int64_t>(sizeof(float)),
            .columns = bricks.columns,
            .steps = plan::round_up(end - first, kBrickDepth) / kBrickDepth,
            .add = !first_};
  }

  /// Like add_values, but from bricks without the keys of `columns`. Each row then adds the ones that it attends.
  void add_special_values(const Chunk& chunk, const std::byte* bricks, const ColumnSet& columns) {
    const std::int64_t keys = chunk.end - chunk.first;
    ForEachCopyWithout(columns, plan::round_up(keys, kBrickDepth) / kBrickDepth, {bricks, v_columns_, 0, v_columns_},
                       buffers_.staging, [&](const ValueBricks& copy) { add_values(0, keys, copy); });
    AddAttendedValues(tile_, buffers_, chunk, is_in_place_);
  }

  Registers& registers_;
  const Tile<float>& tile_;
  const TileBuffers<float>& buffers_;
  ChunkWalk walk_;
  BrickQueries queries_{};
  std::int64_t k_steps_, v_columns_;
  bool is_in_place_;
  BricksInPlace<Registers> in_place_;
  BrickSums sums_{}, new_sums_{};
  bool first_ = true;       // nothing has been accumulated
  bool can_fuse_ = false;   // all factors of scores are positive numbers
  std::uint64_t kept_ = 0;  // rows whose maxima may stay: they have seen a key
};

}  // namespace detail

}  // namespace heddle::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // AVX-512

#endif  // the toggling guard
