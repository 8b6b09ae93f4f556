// Classification: which blocks of score matrices are empty, full or partial, by interval analysis of the mask over ever
// smaller rectangles of blocks. The rows come out as sorted runs, without a dense step. Rows that are known to repeat
// earlier ones (equal_rows.h) are not classified.
#pragma once

#include <span>

#include "expr/ranges.h"
#include "mask/build.h"
#include "mask/row_store.h"

namespace heddle::mask {

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

struct Classified {
  RowStore rows;
  std::int64_t evaluated_tiles = 0, range_queries = 0, classified_rows = 0;
};

/// Rows of all `matrices`, the same for any number of threads.
Classified classify(const Classification& what, std::span<const Matrix> matrices);

}  // namespace heddle::mask
