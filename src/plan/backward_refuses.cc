#include "plan/backward_refuses.h"

#include <fmt/format.h>

#include <tuple>

namespace heddle::plan {

using problem::AttentionProblem;

std::string refuse_broadcasts(const Request& request) {
  const AttentionProblem& problem = request.problem;
  if (problem.packed || problem.batch <= 1) return {};
  const AttentionTensors& tensors = request.tensors;
  for (const auto& [what, view, wanted] :
       {std::tuple("q", &tensors.q, problem.wanted.q), std::tuple("k", &tensors.k, problem.wanted.k),
        std::tuple("v", &tensors.v, problem.wanted.v)}) {
    if (wanted && view->shape[0] == 1) {
      return fmt::format(
          "{} has batch 1 and serves {} sequences, and its gradient is asked for; a batch of {} is accepted", what,
          problem.batch, problem.batch);
    }
  }
  return {};
}

}  // namespace heddle::plan
