// Copies of tensors in rows that TMA takes, which each run makes in its workspace.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "problem/problem.h"
#include "shared/copied_rows.h"

namespace heddle::plan {

/// A tensor that each run first copies into its workspace, row after row, and reads there.
struct TensorCopy {
  Dims shape;                    // of pages: sequences, heads, keys of the longest, columns
  std::array<bool, 3> shared{};  // the first three axes: one entry serves all
  std::int64_t row_bytes = 0;    // from a row to the next: 16 divides it
  bool paged = false;            // the table says where rows are
  shared::CopiedSpan span{};     // of padded sequences the rows that they have
  std::int64_t offset = 0;       // in the workspace

  /// Entries of one of the first three axes that there are in memory.
  std::int64_t stored(int axis) const { return shared[static_cast<std::size_t>(axis)] ? 1 : shape[axis]; }
  std::int64_t bytes() const { return stored(0) * stored(1) * stored(2) * row_bytes; }
};
/// Copies of q, k, v and a fourth tensor.
using TensorCopies = std::array<std::optional<TensorCopy>, 4>;
inline constexpr std::size_t kCopiedCapture = 3;  // a forward's: the capture that is streamed
inline constexpr std::size_t kCopiedDO = 3;       // a backward's, which streams no capture

/// A copy of a tensor of four axes, in rows that TMA takes. Axes with a stride of 0 stay shared.
TensorCopy copy_for(const ConstTensorView& tensor);
/// The copy in that workspace.
ConstTensorView copy_of(const TensorCopy& copy, DType dtype, const void* workspace);

/// Bytes of the copies in a workspace.
std::int64_t room_of(const TensorCopies& copies);

/// Costs of a run's copies.
struct CopyWork {
  std::int64_t workspace_bytes = 0;  // with the copies
  double bytes = 0;                  // read and written
  double shares = 0;                 // that CTAs draw
};
/// Moves the copies' offsets, which count from the first copy, behind the `before` bytes of workspace in use.
CopyWork place_copies(TensorCopies& copies, const problem::AttentionProblem& problem, std::int64_t before);

}  // namespace heddle::plan
