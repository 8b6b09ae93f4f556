// Problems as a planner sees them if lengths are in a GPU's memory.
#pragma once

#include <algorithm>
#include <cstdint>

#include "heddle/attention.h"
#include "problem/problem.h"

namespace heddle::test {

/// The problem as if lengths and starts were in a GPU's memory: the host knows only how long sequences may be.
inline problem::AttentionProblem with_lengths_on_device(problem::AttentionProblem problem,
                                                        const AttentionOptions& options) {
  const auto longest = [&](std::int64_t Sequence::*length, std::int64_t rows) {
    return problem.packed ? std::ranges::max(problem.sequences, {}, length).*length : rows;
  };
  const std::int64_t q_len = longest(&Sequence::q_len, problem.q_rows),
                     kv_len = longest(&Sequence::kv_len, problem.kv_rows);
  problem.device_lengths = true;
  problem.device_starts = options.q_start.has_value();
  problem.device_kv_starts = options.kv_start.has_value();
  if (problem.device_kv_starts) problem.kv_start_dtype = options.kv_start->dtype;
  for (Sequence& sequence : problem.sequences) sequence = {.q_len = q_len, .kv_len = kv_len};
  return problem;
}

}  // namespace heddle::test
