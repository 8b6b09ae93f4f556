// Classification: which blocks of score matrices are empty, full or partial, by interval analysis of the mask over ever
// smaller rectangles of blocks. The rows come out as sorted runs, without a dense step. Rows that are known to repeat
// earlier ones (equal_rows.h) are not classified.
#pragma once

#include <cstdint>
#include <span>

#include "mask/classification.h"
#include "mask/row_store.h"

namespace heddle::mask {

struct Classified {
  RowStore rows;
  std::int64_t evaluated_tiles = 0, range_queries = 0, classified_rows = 0;
};

/// Rows of all `matrices`, the same for any number of threads.
Classified classify(const Classification& what, std::span<const Matrix> matrices);

}  // namespace heddle::mask
