// How a kernel that loads by TMA reaches q, k, v and o. Tensors whose layout TMA takes are read and written in place.
// Else q, k and v are copied into the workspace first, and o is stored by threads. Pages come in boxes, or their rows
// are gathered, 16 bytes at a time, or they are copied sequence by sequence.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plan/access/tensor_copies.h"
#include "problem/problem.h"
#include "shared/storage.h"

namespace heddle::plan {

/// Byte limit for optional copies (pages, sequence by sequence; a capture). HEDDLE_COPY_BYTES overrides it.
inline constexpr std::int64_t kMostCopyBytes = std::int64_t{1} << 30;
std::int64_t most_copy_bytes();

/// One way to reach them all.
struct TensorAccess {
  int page_rows = 0;                                       // of the pages that the kernel walks; 0: it walks none
  shared::StorageType o_type = shared::StorageType::same;  // `same` only where TMA stores it
  bool odd_o = false;
  TensorCopies copies;               // their offsets count from the first one's
  std::vector<std::string> reasons;  // a sentence for each tensor that TMA does not bring from where it is

  /// Adds a copy of the capture that is streamed.
  TensorAccess with_copy(const TensorCopy& capture, const std::string& reason) const;
  /// Reads the capture element by element instead, if there is a reason.
  TensorAccess because(const std::string& reason) const;
};

/// The ways that there are, one at least, and why another is not.
struct TensorAccesses {
  std::vector<TensorAccess> ways;
  std::vector<std::string> rejected{};
};
/// By the strides, and by how far the addresses are aligned (null: as far as may be), both of the tensors that are
/// planned for. A run may bring better aligned ones. Pages TMA takes in boxes of 8 rows or more.
TensorAccesses tensor_accesses(const AttentionTensors& tensors, const problem::AttentionProblem& problem);

}  // namespace heddle::plan
