// append_kv on a GPU: what host and device pass each other. No headers but these, plain integers only.
#pragma once

#include "shared/paging.h"
#include "shared/sequences.h"
#include "shared/storage.h"
#include "shared/strided.h"

namespace heddle::shared {

inline constexpr int kAppendThreads = 256;  // of a CTA

/// One of k, v and q, on its way to its cache or to q_out. A row of it is a row and a head. Element strides of batch
/// (to a cache: page), head and row.
struct AppendedRows {
  RowInput from;
  RowOutput to;
  Descale descale;
  int heads, columns;
  unsigned rows;   // of all sequences and heads
  int vectorised;  // eight columns may be moved at once
  int turned;      // columns that a rotary embedding turns
};

/// The angles of a rotary embedding. Element strides of position and pair.
struct Angles {
  const void *cos, *sin;
  long long cos_stride[2], sin_stride[2];
  int positions;
  int interleaved;       // pairs are neighbours; else halves of the turned columns apart
  int queries_at_first;  // all queries have the first new row's position
};

/// The kernel's parameters.
struct AppendParams {
  AppendedRows k, v, q;                          // q without rows: not given
  LengthsView lengths, starts, first_positions;  // starts: null where sequences are not packed
  PageTable table;                               // without data: a sequence is a row of the cache
  int page_rows;
  long long room;      // rows that a sequence may have
  int batch;           // sequences
  int k_rows, q_rows;  // of a sequence; packed: of all
  int lanes;           // of a row: a power of two, at most 32
  Angles angles;
};

}  // namespace heddle::shared
