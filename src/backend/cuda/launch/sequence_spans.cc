#include "backend/cuda/launch/sequence_spans.h"

namespace heddle::cuda {

std::vector<shared::SequenceSpan> spans_of(const problem::AttentionProblem& problem, int longest) {
  std::vector<shared::SequenceSpan> spans;
  for (const Sequence& sequence : problem.sequences) {
    spans.push_back({.q_begin = static_cast<int>(sequence.q_begin),
                     .q_len = static_cast<int>(sequence.q_len),
                     .kv_len = static_cast<int>(sequence.kv_len),
                     .q_start = static_cast<int>(sequence.q_start),
                     .kv_begin = static_cast<int>(sequence.kv_begin),
                     .kv_end = static_cast<int>(sequence.kv_begin + sequence.kv_len),
                     .kv_before = longest - static_cast<int>(sequence.kv_len),
                     .q_end = static_cast<int>(sequence.q_begin + sequence.q_len)});
  }
  return spans;
}

}  // namespace heddle::cuda
