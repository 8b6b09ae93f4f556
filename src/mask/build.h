// Building block masks: the stages behind BlockMask::build, with the exact evaluation of open blocks as a parameter.
#pragma once

#include <functional>

#include "expr/interpret.h"
#include "heddle/block_mask.h"

namespace heddle::mask {

/// A rectangle of one score matrix: queries [q_begin, q_end) and keys [kv_begin, kv_end), counted from the sequence's
/// own start (q_start not added).
struct Rectangle {
  std::int64_t sequence, head;
  std::int64_t q_begin, q_end, kv_begin, kv_end;
};

/// What an exact evaluation of a rectangle found.
enum class Content : std::uint8_t { empty, full, mixed };

/// Evaluates the bound mask exactly over a rectangle no larger than one block. Called from several threads.
using EvaluateRectangle = std::function<Content(const Rectangle&)>;
/// Makes the evaluator for a mask whose captures are bound; `mask` has no params left. The evaluator may keep
/// references to `shape` and to the captures' memory.
using MakeEvaluator = std::function<EvaluateRectangle(const Expr& mask, const MaskShape& shape,
                                                      const Bindings& bindings, expr::Precision precision)>;

/// The evaluator over the scalar interpreter, element by element. The engine passes the tile evaluator's instead.
EvaluateRectangle scalar_evaluator(const Expr& mask, const MaskShape& shape, const Bindings& bindings,
                                   expr::Precision precision);

/// BlockMask::build and BlockMask::update, which state what is thrown.
BlockMask build(const Expr& mask, const MaskShape& shape, BlockSize block, const Bindings& bindings, int threads,
                DType reals, const MakeEvaluator& make_evaluator);
void update(BlockMask& mask, const Bindings& bindings, int threads, const MakeEvaluator& make_evaluator);

}  // namespace heddle::mask
