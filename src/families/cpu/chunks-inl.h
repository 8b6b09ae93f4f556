// A tile's walk over its keys, a chunk at a time, and what both ways of reading them share: mods and the softmax
// between the two products.

// A guard that toggles, as Highway's per-target headers have.
#if defined(HEDDLE_CPU_CHUNKS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEDDLE_CPU_CHUNKS_INL_H_
#undef HEDDLE_CPU_CHUNKS_INL_H_
#else
#define HEDDLE_CPU_CHUNKS_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "families/cpu/probabilities-inl.h"
#include "families/cpu/target_data.h"
#include "families/cpu/values-inl.h"

HWY_BEFORE_NAMESPACE();
namespace heddle::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

namespace detail {

/// The chunks of the runs' blocks, as far as they are keys [key_begin, key_end). A chunk starts where a run does or
/// where a panel does.
class ChunkWalk {
 public:
  ChunkWalk(const RowRuns& runs, std::int64_t block_keys, std::int64_t key_begin, std::int64_t key_end)
      : run_(runs.begin()), last_(runs.end()), block_keys_(block_keys), key_begin_(key_begin), key_end_(key_end) {
    enter();
  }

  bool done() const { return run_ == last_; }
  RunKind kind() const { return run_->kind; }
  /// keys: of a chunk, at most.
  Chunk chunk(std::int64_t keys = plan::kChunk) const {
    const std::int64_t panel = begin_ / plan::kPanel * plan::kPanel;
    return {begin_ / kColumnUnit * kColumnUnit, begin_, std::min(end_, panel + keys)};
  }
  /// The end of the run's keys.
  std::int64_t run_end() const { return end_; }
  void next() { skip(chunk().end); }
  void next(const Chunk& chunk) { skip(chunk.end); }
  /// Goes on at `key`, which the run may end at.
  void skip(std::int64_t key) {
    begin_ = key;
    if (begin_ < end_) return;
    ++run_;
    enter();
  }

 private:
  /// The first run that has keys.
  void enter() {
    for (; run_ != last_; ++run_) {
      begin_ = std::max(run_->begin * block_keys_, key_begin_);
      end_ = std::min(run_->end * block_keys_, key_end_);
      if (begin_ < end_) return;
    }
  }

  RowRuns::iterator run_, last_;
  std::int64_t block_keys_, key_begin_, key_end_, begin_ = 0, end_ = 0;
};

/// Takes the walks of several tiles through the same `keys` keys before any goes on, so that these stay in the cache.
/// walk_of(i): the walk of tile i. go(i, end): takes it through its chunks that begin before key `end`.
template <class WalkOf, class Go>
void WalkTogether(std::size_t tiles, std::int64_t keys, const WalkOf& walk_of, const Go& go) {
  constexpr std::int64_t kNone = std::numeric_limits<std::int64_t>::max();
  for (;;) {
    std::int64_t least = kNone;
    for (std::size_t i = 0; i < tiles; ++i) {
      const ChunkWalk& walk = walk_of(i);
      if (!walk.done()) least = std::min(least, walk.chunk().begin);
    }
    if (least == kNone) return;
    for (std::size_t i = 0; i < tiles; ++i) go(i, least / keys * keys + keys);
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

/// Scores of the chunk to weights of its values.
template <class T>
void NormalizeScores(const Tile<T>& tile, const TileBuffers<T>& buffers, const Chunk& chunk) {
  const ScoreChunk<T> scores{.scores = buffers.scores,
                             .weights = tile.weight ? buffers.weights : nullptr,
                             .rows = tile.rows(),
                             .columns = chunk.columns()};
  if (tile.normalizer == Normalizer::softmax) {
    SoftmaxChunk(scores, buffers.row_maxima, buffers.row_scales, buffers.row_sums);
  } else {
    NormalizeChunk(scores, tile.normalizer);
  }
}

}  // namespace detail

}  // namespace heddle::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // the toggling guard
