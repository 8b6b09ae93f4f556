// Copies or adds rows between two tensors of one device, by lists of row numbers. Exchanges between ranks use it to
// pack rows that leave and to store rows that arrive. ContextAttention (context_parallel.h) calls it itself.
#pragma once

#include <optional>

#include "heddle/tensor.h"

namespace heddle {

/// Options of move_rows().
struct RowMoves {
  /// i32 [n], contiguous, on the tensors' device. Row from_rows[i] of `from` goes to row to_rows[i] of `to`, in each
  /// head. A missing list counts 0, 1, 2 and so on. Numbers in to_rows must differ from each other. The CPU checks the
  /// numbers; on a GPU wrong numbers are undefined behaviour.
  std::optional<ConstTensorView> from_rows{}, to_rows{};
  bool adds = false;       // add to `to` instead of overwriting it; sums in f32 (f64 if either tensor is f64)
  void* stream = nullptr;  // GPU only; null: the default stream
};

/// Copies rows of `from` [B, H, rows, D] to `to` [B, H, rows, D] and converts them to its dtype. Both tensors have
/// floating dtypes, the same B, H and D, and a last stride of 1; other strides are free. Without lists they also have
/// the same number of rows; with lists, n rows of each head move. The tensors must not overlap. On a GPU a call is one
/// kernel launch and does not wait, except for the first call with a pair of dtypes, which compiles the kernel.
///
/// Throws Error(invalid_argument) before anything is written, Error(unsupported) on a GPU for 2^31 rows or more over
/// all heads, Error(device) and Error(compile).
void move_rows(const ConstTensorView& from, const TensorView& to, const RowMoves& how = {});

}  // namespace heddle
