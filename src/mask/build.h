// Building block masks: the stages behind BlockMask::build, with the exact evaluation of open blocks as a parameter.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "mask/classification.h"

namespace heddle::mask {

/// The evaluator over the scalar interpreter, element by element. The engine passes the tile evaluator's instead.
EvaluateRectangle scalar_evaluator(const Expr& mask, const MaskShape& shape, const Bindings& bindings,
                                   expr::Precision precision);

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

/// The work of BlockMask::build and BlockMask::update, which state the errors.
BlockMask build(const Expr& mask, const MaskShape& shape, BlockSize block, const Bindings& bindings, int threads,
                DType reals, const MakeEvaluator& make_evaluator, bool clamp_reads = false);
void update(BlockMask& mask, const Bindings& bindings, int threads, const MakeEvaluator& make_evaluator);

}  // namespace heddle::mask
