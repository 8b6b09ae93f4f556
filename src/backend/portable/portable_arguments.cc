#include "backend/portable/portable_arguments.h"

#include <fmt/format.h>

#include <cstdint>

#include "heddle/error.h"

namespace heddle::portable {

void check_address(std::string_view name, const void* address, int bytes) {
  if (reinterpret_cast<std::uintptr_t>(address) % static_cast<std::uintptr_t>(bytes) == 0) return;
  throw Error(ErrorCode::invalid_argument,
              fmt::format("{} is at address {}; a multiple of {}, as the planned one had it, is accepted", name,
                          address, bytes));
}

std::vector<shared::SequenceSpan> spans_of(const problem::AttentionProblem& problem) {
  std::vector<shared::SequenceSpan> spans;
  for (const Sequence& sequence : problem.sequences) {
    shared::SequenceSpan span{};
    span.q_begin = static_cast<int>(sequence.q_begin);
    span.q_len = static_cast<int>(sequence.q_len);
    span.kv_len = static_cast<int>(sequence.kv_len);
    span.q_start = static_cast<int>(sequence.q_start);
    span.kv_begin = static_cast<int>(sequence.kv_begin);
    span.kv_end = static_cast<int>(sequence.kv_begin + sequence.kv_len);
    span.q_end = static_cast<int>(sequence.q_begin + sequence.q_len);
    spans.push_back(span);
  }
  return spans;
}

}  // namespace heddle::portable
