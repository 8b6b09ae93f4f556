// merge_states on a GPU: what host and device pass each other. No headers but these, plain integers only.
#pragma once

#include "shared/storage.h"

namespace heddle::shared {

inline constexpr int kMergeParts = 64;     // at most
inline constexpr int kMergeThreads = 256;  // of a CTA

/// A result over some of the keys. Element strides of batch, head, row.
struct MergePart {
  const void* o;
  const void* lse;
  long long o_stride[3], lse_stride[3];
  StorageType o_type, lse_type;
  int vectorised;  // eight columns of o may be loaded at once
};

/// The kernel's parameters.
struct MergeParams {
  void* o;
  void* lse;  // null: not asked for
  long long o_stride[3], lse_stride[3];
  StorageType lse_type;
  int vectorised;  // eight columns of o may be stored at once
  int count;       // parts
  int rows;        // of all heads and batches
  int heads, rows_of_head;
  int columns;
  int lanes;  // of a row: a power of two, at most 32
  MergePart part[kMergeParts];
};

}  // namespace heddle::shared
