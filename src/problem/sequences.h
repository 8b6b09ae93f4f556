// Lengths, cumulative lengths and starts of sequences, resolved to one Sequence a batch entry.
#pragma once

#include <array>
#include <string_view>
#include <utility>
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
};

/// Reads the options' q_lengths, kv_lengths, cu_seqlens_q, cu_seqlens_kv, q_start and kv_start where they are on the
/// CPU; where they are on `device`, that of q, checks all but their content. Throws invalid_argument.
ResolvedSequences resolve_sequences(const AttentionOptions& options, const PaddedSizes& sizes, const Device& device);

/// The options that are views of lengths, with their names.
using NamedLengths = std::pair<std::string_view, std::optional<ConstTensorView> AttentionOptions::*>;
inline constexpr std::array<NamedLengths, 6> kLengthViews = {{{"q_lengths", &AttentionOptions::q_lengths},
                                                              {"kv_lengths", &AttentionOptions::kv_lengths},
                                                              {"cu_seqlens_q", &AttentionOptions::cu_seqlens_q},
                                                              {"cu_seqlens_kv", &AttentionOptions::cu_seqlens_kv},
                                                              {"q_start", &AttentionOptions::q_start},
                                                              {"kv_start", &AttentionOptions::kv_start}}};

}  // namespace heddle::problem
