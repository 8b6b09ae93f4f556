// The plans that backward_sm90 makes for tensors of the host, as if they were a GPU's.
#pragma once

#include <vector>

#include "backend/cuda/jit/cuda_jit.h"
#include "families/backward_sm90/backward_sm90.h"
#include "heddle/backward.h"
#include "problem/problem.h"

namespace heddle::test {

struct PlannedBackward {
  problem::AttentionProblem problem;
  std::vector<plan::Choice> choices;
};

/// `device_lengths`: lengths and starts are as if in a GPU's memory. Throws Error where the family refuses the problem.
PlannedBackward plan_backward(const BackwardTensors& tensors, const AttentionOptions& options, bool device_lengths);

/// The sources that a launcher compiles for such a choice.
std::vector<cuda::jit::Source> sources_of(const PlannedBackward& planned, const plan::Choice& choice,
                                          const BackwardTensors& tensors, const AttentionOptions& options);

}  // namespace heddle::test
