// A problem of one head and 1000 queries and keys, for tests of what becomes of its mods.
#pragma once

#include "problem/problem.h"

namespace heddle::test {

inline problem::AttentionProblem problem_of(const Expr& score, const Expr& mask = {}, double scale = 0.125) {
  problem::AttentionProblem problem;
  problem.batch = problem.q_heads = problem.kv_heads = 1;
  problem.q_rows = problem.kv_rows = 1000;
  problem.sequences.resize(1);
  problem.sequences[0].q_len = problem.sequences[0].kv_len = 1000;
  problem.scale = scale;
  problem.score_mod = score;
  problem.mask_mod = mask;
  return problem;
}

}  // namespace heddle::test
