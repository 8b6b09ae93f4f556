// Score matrices, rectangles of them, the exact evaluation of a rectangle, and the task that the stages of a
// classification share.
#pragma once

#include <cstdint>
#include <functional>

#include "expr/interpret.h"
#include "expr/ranges.h"
#include "heddle/block_mask.h"

namespace heddle::mask {

/// One score matrix.
struct Matrix {
  std::int64_t sequence, head;
};

/// A rectangle of one score matrix: queries [q_begin, q_end) and keys [kv_begin, kv_end), counted from the sequence's
/// own start (q_start and kv_start not added).
struct Rectangle {
  std::int64_t sequence, head;
  std::int64_t q_begin, q_end, kv_begin, kv_end;
};

/// Result of the exact evaluation of a rectangle.
enum class Content : std::uint8_t { empty, full, mixed };

/// Evaluates the bound mask exactly over a rectangle no larger than one block. Called from several threads.
using EvaluateRectangle = std::function<Content(const Rectangle&)>;
/// Makes the evaluator for a mask whose captures are bound; `mask` has no params left. The evaluator may keep
/// references to `shape` and to the captures' memory.
using MakeEvaluator = std::function<EvaluateRectangle(const Expr& mask, const MaskShape& shape,
                                                      const Bindings& bindings, expr::Precision precision)>;

/// A task of classification. The mask has no params, and its role and reads are checked.
struct Classification {
  const Expr& mask;
  const MaskShape& shape;
  BlockSize block;
  const expr::LeafRanges& leaves;  // over all score matrices of the shape
  const Bindings& bindings;
  const expr::CaptureBounds& captures;
  expr::Precision precision;
  const EvaluateRectangle& evaluate;
  int threads;
};

}  // namespace heddle::mask
