// Block masks as callers build them: the stages of src/mask with the tile evaluator for what intervals leave open.
#include "heddle/block_mask.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "base/kept.h"
#include "mask/build.h"
#include "tile_evaluator/tile_evaluator.h"

namespace heddle {
namespace {

using cpu::TileProgram;
using mask::Content;

constexpr std::int64_t kMostRows = 4096;  // of one tile: blocks may have more than an int counts

/// A mask compiled for tiles, shared by threads that each borrow a scratch.
class TileMask {
 public:
  TileMask(const Expr& mask, const Bindings& bindings, expr::Precision precision)
      : program_(mask, precision), bindings_(bindings) {}

  Content content(const mask::Rectangle& rectangle, const Sequence& sequence) {
    const auto scratch =
        scratches_.take([this] { return std::make_unique<TileProgram::Scratch>(program_, bindings_); });
    return content(rectangle, sequence, *scratch);
  }

 private:
  Content content(const mask::Rectangle& rectangle, const Sequence& sequence, TileProgram::Scratch& scratch) const {
    bool some_true = false, some_false = false;
    for (std::int64_t kv = rectangle.kv_begin; kv < rectangle.kv_end; kv += cpu::kMaxColumns) {
      for (std::int64_t q = rectangle.q_begin; q < rectangle.q_end; q += kMostRows) {
        const cpu::TilePosition at{
            .b = static_cast<std::int32_t>(rectangle.sequence),
            .h = static_cast<std::int32_t>(rectangle.head),
            .sequence = sequence,
            .q_first = q,
            .kv_first = kv,
            .rows = static_cast<int>(std::min(kMostRows, rectangle.q_end - q)),
            .columns = static_cast<int>(std::min<std::int64_t>(cpu::kMaxColumns, rectangle.kv_end - kv))};
        const TileProgram::Count count = program_.count(at, scratch);
        some_true |= count.yes > 0;
        some_false |= count.yes < count.total;
        if (some_true && some_false) return Content::mixed;
      }
    }
    return some_true ? Content::full : Content::empty;
  }

  TileProgram program_;
  const Bindings& bindings_;
  base::Kept<TileProgram::Scratch> scratches_;
};

mask::EvaluateRectangle tile_evaluator(const Expr& mask, const MaskShape& shape, const Bindings& bindings,
                                       expr::Precision precision) {
  const auto tiles = std::make_shared<TileMask>(mask, bindings, precision);
  return [tiles, &shape](const mask::Rectangle& rectangle) {
    return tiles->content(rectangle, shape.sequences[static_cast<std::size_t>(rectangle.sequence)]);
  };
}

}  // namespace

BlockMask BlockMask::build(const Expr& mask, const MaskShape& shape, BlockSize block, const Bindings& bindings,
                           int threads, DType reals, bool clamp_reads) {
  return mask::build(mask, shape, block, bindings, threads, reals, tile_evaluator, clamp_reads);
}

void BlockMask::update(const Bindings& bindings, int threads) {
  mask::update(*this, bindings, threads, tile_evaluator);
}

}  // namespace heddle
