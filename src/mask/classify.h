// Classification: which blocks of score matrices are empty, full or partial, by interval analysis of the mask over ever
// smaller rectangles of blocks. The rows come out as sorted runs, without a dense step.
#pragma once

#include <span>

#include "expr/ranges.h"
#include "mask/build.h"

namespace heddle::mask {

/// What to classify: a mask without params, checked for its role and its reads.
struct Classification {
  const Expr& mask;
  const MaskShape& shape;
  BlockSize block;
  const expr::CaptureBounds& captures;
  expr::Precision precision;
  const EvaluateRectangle& evaluate;
  int threads;
};

/// Rows of all `matrices`, the same for any number of threads.
Rows classify(const Classification& what, std::span<const Matrix> matrices);

}  // namespace heddle::mask
