// Lengths, cumulative lengths and starts of sequences, resolved to one Sequence a batch entry.
#pragma once

#include <vector>

#include "heddle/attention.h"

namespace heddle::problem {

/// What the sequences are cut from: the batch of q, k, v and the rows of q and of k and v.
struct PaddedSizes {
  std::int64_t batch, q_rows, kv_rows;
};

/// Reads the options' q_lengths, kv_lengths, cu_seqlens_q, cu_seqlens_kv and q_start. Throws invalid_argument.
std::vector<Sequence> resolve_sequences(const AttentionOptions& options, const PaddedSizes& sizes);

}  // namespace heddle::problem
