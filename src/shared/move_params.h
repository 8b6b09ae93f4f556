// Moving rows between tensors on a GPU: what host and device pass each other. No headers but these, plain integers
// only.
#pragma once

#include "shared/storage.h"

namespace heddle::shared {

inline constexpr int kMoveThreads = 256;  // of a CTA

/// Row i of each head of `rows_of_head` comes from row from_rows[i] and goes to row to_rows[i]; without a list, row i.
/// Element strides of batch, head, row.
struct MoveParams {
  const void* from;
  void* to;
  const int* from_rows;
  const int* to_rows;
  long long from_stride[3], to_stride[3];
  int from_vectorised, to_vectorised;  // eight columns may be loaded, or stored, at once
  int rows;                            // of all heads and batches
  int heads, rows_of_head;
  int columns;
  int lanes;  // of a row: a power of two, at most 32
};

}  // namespace heddle::shared
