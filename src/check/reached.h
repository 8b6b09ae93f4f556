// Which elements of gradients a GPU's tile products may make NaN: they multiply what is masked by 0.
#pragma once

#include <vector>

#include "problem/problem.h"

namespace heddle::check {

/// Row-major, of the shapes of q, k and v.
struct ReachedByMasked {
  std::vector<bool> q, k, v;
};

/// Columns through which masked numbers may reach gradients: for dq columns of k, for dk those of q, for dv those of
/// dO, if they hold a number within the sequence that is not finite.
ReachedByMasked reached_by_masked(const problem::AttentionProblem& problem, const AttentionTensors& tensors,
                                  const AttentionOptions& options, const ConstTensorView& d_o);

}  // namespace heddle::check
