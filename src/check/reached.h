// Which elements of gradients a GPU's tile products may make NaN: they multiply what is masked by 0.
#pragma once

#include <vector>

#include "problem/problem.h"

namespace heddle::check {

/// Row-major, of the shapes of q, k and v.
struct ReachedByMasked {
  std::vector<bool> q, k, v;
};

/// dq is reached by columns of k that hold, within the sequence, something that is not finite; dk by those of q, dv by
/// those of dO.
ReachedByMasked reached_by_masked(const problem::AttentionProblem& problem, const AttentionTensors& tensors,
                                  const AttentionOptions& options, const ConstTensorView& d_o);

}  // namespace heddle::check
