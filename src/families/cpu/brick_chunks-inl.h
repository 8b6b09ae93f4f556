// The chunks that the pipeline takes (brick_pipeline-inl.h), and what it has to know of their mods. For AVX-512 alone.

// A guard that toggles, as Highway's per-target headers have.
#if defined(HEDDLE_CPU_BRICK_CHUNKS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEDDLE_CPU_BRICK_CHUNKS_INL_H_
#undef HEDDLE_CPU_BRICK_CHUNKS_INL_H_
#else
#define HEDDLE_CPU_BRICK_CHUNKS_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>

#include "families/cpu/chunks-inl.h"
#include "families/cpu/target_data.h"

#if HWY_ARCH_X86_64 && HWY_TARGET == HWY_AVX3
HWY_BEFORE_NAMESPACE();
namespace heddle::cpu::HWY_NAMESPACE {

namespace detail {

/// Keys of a chunk: half of the columns of the scores' buffer, so that two chunks stand there.
inline constexpr std::int64_t kPipelineKeys = plan::kChunk / 2;

/// A chunk of kPipelineKeys keys from `begin` on, and the mod of its scores.
struct PipelineChunk {
  std::int64_t begin = 0;
  const TileMod* mod = nullptr;
};

/// Whole chunks of finite values, through all runs, up to the first chunk that is not one.
class PipelineWalk {
 public:
  /// Chunks that begin before key `end`.
  PipelineWalk(const Tile<float>& tile, const ChunkWalk& walk, std::int64_t end)
      : tile_(tile), walk_(walk), end_(end) {}

  /// False: there is none.
  bool next(PipelineChunk& chunk) {
    if (walk_.done()) return false;
    const std::int64_t begin = walk_.chunk().begin;
    if (begin % kPipelineKeys != 0 || walk_.run_end() - begin < kPipelineKeys || begin >= end_) return false;
    if (tile_.bricks.v_flags[begin / kPipelineKeys] != 0) return false;
    chunk = {begin, walk_.kind() == RunKind::full ? &tile_.full : &tile_.partial};
    walk_.skip(begin + kPipelineKeys);
    return true;
  }

 private:
  const Tile<float>& tile_;
  ChunkWalk walk_;
  std::int64_t end_;
};

/// How rows get their t from the products of a chunk. In all forms but plain they take larger maxima first.
enum class RowForm : std::uint8_t {
  plain,     // the factor is multiplied in where weights are computed
  finished,  // t stands there
  added,     // product * factor + a term
  capped,    // outside * tanh(inside * (product * factor))
};
inline constexpr int kRowForms = 4;

/// The mods of one chunk after the other.
class ChunkMods {
 public:
  ChunkMods(const Tile<float>& tile, const TileBuffers<float>& buffers) : tile_(tile), buffers_(buffers) {}

  /// The chunk's form, and what it needs. scores: of the chunk. `scaled`: they may not stay as they are.
  RowForm start(const PipelineChunk& chunk, float* scores, bool scaled) {
    if (*chunk.mod && !tile_.weight && tile_.heads == 1) {
      find_form(chunk);
      if (form_.kind == TileForm::Kind::added) return RowForm::added;
      if (form_.kind == TileForm::Kind::capped) return RowForm::capped;
    }
    return finish(chunk, scores, scaled);
  }
  /// Computes all there is before rows are weighed.
  RowForm finish(const PipelineChunk& chunk, float* scores, bool scaled) {
    if (scaled) scale(scores);
    TilePosition at = tile_.at;
    at.kv_first = chunk.begin;
    at.columns = kPipelineKeys;
    for (std::int64_t head = 0; *chunk.mod && head < tile_.heads; ++head, ++at.h) {
      float* rows = scores + head * at.rows * plan::kChunk;
      chunk.mod->program->run(at, rows, rows, plan::kChunk, *chunk.mod->scratch);
    }
    if (tile_.weight) find_weights(chunk.begin);
    return scaled ? RowForm::finished : RowForm::plain;
  }
  /// The form that start() has found, and the chunk's terms.
  const TileForm& form() const { return form_; }
  const float* terms() const { return form_.terms + form_column_; }
  /// The chunk's weights by the weight mod, [rows][kChunk]; null if there is none.
  const float* weights() const { return tile_.weight ? buffers_.weights + weights_column_ : nullptr; }

 private:
  /// Finds the form of two chunks at once if their terms have room: a call takes about as long for one chunk.
  void find_form(const PipelineChunk& chunk) {
    const std::int64_t before = form_first_;
    form_column_ = chunk.begin % plan::kChunk;
    form_first_ = chunk.begin - form_column_;
    if (form_first_ == before && form_mod_ == chunk.mod) return;
    TilePosition at = tile_.at;
    at.kv_first = form_first_;
    at.columns = plan::kChunk;
    form_ = chunk.mod->program->start_form(at, *chunk.mod->scratch);
    form_mod_ = form_.kind == TileForm::Kind::other ? nullptr : chunk.mod;
    if (form_mod_ != nullptr) return;
    at.kv_first = chunk.begin;
    at.columns = kPipelineKeys;
    form_column_ = 0;
    form_ = chunk.mod->program->start_form(at, *chunk.mod->scratch);
  }
  /// Computes the weights of two chunks at once, since 128 draws take as long as 64.
  void find_weights(std::int64_t begin) {
    weights_column_ = begin % plan::kChunk;
    TilePosition at = tile_.at;
    at.kv_first = begin - weights_column_;
    at.columns = plan::kChunk;
    if (at.kv_first == weights_first_) return;
    weights_first_ = at.kv_first;
    for (std::int64_t head = 0; head < tile_.heads; ++head, ++at.h) {
      float* rows = buffers_.weights + head * at.rows * plan::kChunk;
      tile_.weight.program->run(at, nullptr, rows, plan::kChunk, *tile_.weight.scratch);
    }
  }
  void scale(float* scores) const {
    for (std::int64_t r = 0; r < tile_.rows(); ++r) {
      const __m512 factor = _mm512_set1_ps(buffers_.row_factors[r]);
      float* row = scores + r * plan::kChunk;
      for (std::int64_t i = 0; i < kPipelineKeys; i += 16) {
        _mm512_store_ps(row + i, _mm512_mul_ps(_mm512_load_ps(row + i), factor));
      }
    }
  }

  const Tile<float>& tile_;
  const TileBuffers<float>& buffers_;
  TileForm form_{};
  const TileMod* form_mod_ = nullptr;                     // whose form it is; null: of one chunk alone
  std::int64_t form_first_ = -1, form_column_ = 0;        // the first key of its terms, and where the chunk's begin
  std::int64_t weights_first_ = -1, weights_column_ = 0;  // the first key of those that stand there
};

}  // namespace detail

}  // namespace heddle::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // AVX-512

#endif  // the toggling guard
