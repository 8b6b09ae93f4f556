// Checks of the arguments of append_kv(), and where its rows go.
#pragma once

#include "heddle/kv_cache.h"

namespace heddle::problem {

/// Sizes of an append. Packed: `batch` counts the sequences, and `rows` and `q_rows` are those of all.
struct AppendSizes {
  std::int64_t batch, rows, q_rows;
  std::int64_t page_rows;  // rows of a page; of a cache without pages: its rows
  std::int64_t room;       // rows that a sequence may have
};
AppendSizes append_sizes(const AppendTensors& tensors, const AppendOptions& options);

/// Shapes, dtypes, devices and overlaps. Reads no tensor's content. Throws invalid_argument.
void check_append(const AppendTensors& tensors, const AppendOptions& options);
/// On the CPU: lengths, pages and positions. Throws invalid_argument.
void check_append_rows(const AppendTensors& tensors, const AppendOptions& options);

/// On the CPU: where the new row `row` of sequence `b` goes.
struct AppendIndex {
  std::int64_t entry, row;  // of a cache: its page or sequence, and the row there
};
AppendIndex append_index(const AppendOptions& options, const AppendSizes& sizes, std::int64_t b, std::int64_t row);

/// On the CPU: entry i of an i32 or i64 vector.
std::int64_t integer_at(const ConstTensorView& view, std::int64_t i);

/// On the CPU: the new rows of sequence b begin there in k, and end.
struct AppendSpan {
  std::int64_t begin, end;
};
AppendSpan append_span(const AppendOptions& options, const AppendSizes& sizes, std::int64_t b);

}  // namespace heddle::problem
