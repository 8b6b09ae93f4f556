// Rows of the gradients that no task of a backward writes, because no sequence has them.
#pragma once

#include "heddle/backward.h"
#include "problem/problem.h"

namespace heddle::cpu {

/// Zeros them in dq, dk and dv: padding behind each sequence; of packed sequences the keys behind their kv_len.
void clear_unread(const problem::AttentionProblem& problem, const BackwardTensors& tensors);

}  // namespace heddle::cpu
