// Rows moved between tensors of one device: packed by a list before they travel to another rank, stored or added where
// a list says when they have come. context_parallel.h does so by itself; exchanges of one's own are built of this.
#pragma once

#include <optional>

#include "heddle/tensor.h"

namespace heddle {

/// Which rows of a move, and how.
struct RowMoves {
  /// i32 [n], contiguous, on the tensors' device: row i of each head comes from row from_rows[i] of `from`, and goes to
  /// row to_rows[i] of `to`. Without a list it is row i. No number may stand twice in to_rows. On the CPU numbers are
  /// checked; on a GPU they must be right.
  std::optional<ConstTensorView> from_rows{}, to_rows{};
  bool adds = false;       // to what `to` holds, in f32 (f64 if either is f64), instead of writing it
  void* stream = nullptr;  // of a GPU; null: the default one
};

/// Moves rows of `from` [B, H, rows, D] to rows of `to` [B, H, rows, D], and converts them. Both have floating dtypes,
/// any strides whose last is 1, and the same B, H and D; `rows` are equal only without lists. n is the length of the
/// lists. Where memory of the two overlaps, results are undefined. On a GPU it is one launch, and nothing waits, but
/// for the first move of its dtypes on a device, which compiles its kernel.
///
/// Throws Error(invalid_argument), and writes nothing then; Error(unsupported) on a GPU for 2^31 rows of all heads and
/// more; Error(device), Error(compile).
void move_rows(const ConstTensorView& from, const TensorView& to, const RowMoves& how = {});

}  // namespace heddle
