#include "backend/gpu/sequence_spans.h"

#include <algorithm>

namespace heddle::gpu {

int longest(const problem::AttentionProblem& problem, std::int64_t Sequence::*length) {
  std::int64_t most = 0;
  for (const Sequence& sequence : problem.sequences) most = std::max(most, sequence.*length);
  return static_cast<int>(most);
}

std::vector<shared::SequenceSpan> spans_of(const problem::AttentionProblem& problem) {
  const int keys = longest(problem, &Sequence::kv_len);
  std::vector<shared::SequenceSpan> spans;
  for (const Sequence& sequence : problem.sequences) {
    spans.push_back({.q_begin = static_cast<int>(sequence.q_begin),
                     .q_len = static_cast<int>(sequence.q_len),
                     .kv_len = static_cast<int>(sequence.kv_len),
                     .q_start = static_cast<int>(sequence.q_start),
                     .kv_begin = static_cast<int>(sequence.kv_begin),
                     .kv_end = static_cast<int>(sequence.kv_begin + sequence.kv_len),
                     .kv_before = keys - static_cast<int>(sequence.kv_len),
                     .q_end = static_cast<int>(sequence.q_begin + sequence.q_len)});
  }
  return spans;
}

}  // namespace heddle::gpu
