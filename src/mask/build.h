// Building block masks: the stages behind BlockMask::build, with the exact evaluation of open blocks as a parameter.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "expr/interpret.h"
#include "heddle/block_mask.h"

namespace heddle::mask {

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

/// The evaluator over the scalar interpreter, element by element. The engine passes the tile evaluator's instead.
EvaluateRectangle scalar_evaluator(const Expr& mask, const MaskShape& shape, const Bindings& bindings,
                                   expr::Precision precision);

/// One score matrix whose rows are wanted.
struct Matrix {
  std::int64_t sequence, head;
};

/// Rows of runs in CSR form: matrix after matrix, query block after query block.
struct Rows {
  std::vector<std::int64_t> offset{0};
  std::vector<Run> runs;
};

/// Finds rows elsewhere: of `mask`, simplified, whose params are not bound. The memory of captures may be anywhere.
using FindRows = std::function<Rows(const Expr& mask, const MaskShape& shape, BlockSize block,
                                    std::span<const Matrix> matrices, const Bindings& bindings)>;
/// BlockMask::build with rows that are found where the captures are, in f32. Their content is not hashed:
/// check_current() takes it for the one that the rows were built from.
BlockMask build_elsewhere(const Expr& mask, const MaskShape& shape, BlockSize block, const Bindings& bindings,
                          const FindRows& find, bool clamp_reads = false);
/// Every read of the mask is inside its tensor, whatever the captures hold.
bool reads_inside_for_all_values(const Expr& mask, const MaskShape& shape, const Bindings& bindings);

/// BlockMask::build and BlockMask::update, which state what is thrown.
BlockMask build(const Expr& mask, const MaskShape& shape, BlockSize block, const Bindings& bindings, int threads,
                DType reals, const MakeEvaluator& make_evaluator, bool clamp_reads = false);
void update(BlockMask& mask, const Bindings& bindings, int threads, const MakeEvaluator& make_evaluator);

}  // namespace heddle::mask
