// Lengths, cumulative lengths and starts of sequences, resolved to one Sequence a batch entry.
#pragma once

#include <vector>

#include "heddle/attention.h"

namespace heddle::problem {

/// Sizes of the tensors that the sequences lie in: the batch of q, k, v and the rows of q and of k and v.
struct PaddedSizes {
  std::int64_t batch, q_rows, kv_rows;
};

/// As AttentionProblem's members of these names.
struct ResolvedSequences {
  std::vector<Sequence> sequences;
  bool device_lengths = false, device_starts = false, device_kv_starts = false;
  std::vector<std::int64_t> prefix_group{}, prefix_len{};
};

/// Reads the options' q_lengths, kv_lengths, cu_seqlens_q, cu_seqlens_kv, q_start, kv_start, prefix_group and
/// prefix_len where they are on the CPU; where they are on `device`, that of q, checks all but their content. Throws
/// invalid_argument.
ResolvedSequences resolve_sequences(const AttentionOptions& options, const PaddedSizes& sizes, const Device& device);

}  // namespace heddle::problem
