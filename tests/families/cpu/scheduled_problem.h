// Problems whose schedule on the CPU is tested.
#pragma once

#include <cstdint>
#include <iterator>
#include <vector>

#include "problem/problem.h"

namespace heddle::cpu {

inline constexpr std::int64_t kTileRows = 48;

inline const std::vector<Sequence> kSequences = {{.q_len = 100, .kv_len = 300},
                                                 {.q_len = 0, .kv_len = 40},
                                                 {.q_len = 7, .kv_len = 5000},
                                                 {.q_len = 49, .kv_len = 0},
                                                 {.q_len = 1, .kv_len = 2049}};

inline problem::AttentionProblem problem_of(std::int64_t q_heads, std::int64_t kv_heads,
                                            const std::vector<Sequence>& sequences) {
  problem::AttentionProblem problem;
  problem.batch = std::ssize(sequences);
  problem.q_heads = q_heads;
  problem.kv_heads = kv_heads;
  problem.qk_dim = 24;
  problem.v_dim = 40;
  problem.sequences = sequences;
  return problem;
}

}  // namespace heddle::cpu
