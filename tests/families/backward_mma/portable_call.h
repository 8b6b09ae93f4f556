// Backwards of forward calls, as the portable family plans them.
#pragma once

#include <string>
#include <vector>

#include "families/backward_mma/backward_mma.h"
#include "plan/hopper.h"

namespace heddle::test {

/// A backward of a forward call.
struct PortableCall {
  HopperCall call{.batch = 2, .q_heads = 4, .kv_heads = 2, .q_rows = 200, .kv_rows = 300, .dim = 64};
  bool dq = true, dk = true, dv = true;

  BackwardTensors tensors() const {
    const AttentionTensors forward = call.tensors();
    BackwardTensors tensors{.q = forward.q, .k = forward.k, .v = forward.v, .o = forward.o, .d_o = forward.o};
    tensors.lse = *forward.lse;
    if (dq) tensors.dq = TensorView(nullptr, call.dtype, forward.q.shape);
    if (dk) tensors.dk = TensorView(nullptr, call.dtype, forward.k.shape);
    if (dv) tensors.dv = TensorView(nullptr, call.dtype, forward.v.shape);
    return tensors;
  }
  problem::AttentionProblem problem(const BackwardTensors& tensors) const {
    problem::AttentionProblem problem = problem::validate(tensors, call.all_options());
    problem.device = {DeviceKind::cuda, 0};
    return problem;
  }
  template <class Use>
  auto with_request(const BackwardTensors& tensors, Use&& use) const {
    const problem::AttentionProblem problem = this->problem(tensors);
    const AttentionTensors forward = problem::forward_tensors(tensors);
    const AttentionOptions options = call.all_options();
    const device::Machine machine{};
    return use(plan::Request{problem, forward, options, machine, &tensors});
  }
  std::string refusal(const BackwardTensors& tensors) const {
    return with_request(tensors,
                        [](const plan::Request& request) { return plan::backward_mma_refuses(request, h200()); });
  }
  /// The plans of a GPU, best first.
  std::vector<plan::Choice> offered(const device::CudaCaps& caps) const {
    return with_request(tensors(), [&](const plan::Request& request) {
      return plan::backward_mma(request, caps, [&](BlockSize block) { return call.rows_of(block); });
    });
  }
  plan::Plan plan() const {
    return with_request(tensors(), [&](const plan::Request& request) {
      return plan::backward_mma(request, h200(), [&](BlockSize block) { return call.rows_of(block); }).front().plan;
    });
  }
  std::vector<std::string> passes() const {
    std::vector<std::string> names;
    const plan::Plan planned = plan();
    for (const auto& pass : planned.part<plan::BackwardMmaKernels>().passes)
      names.emplace_back(plan::name_of_pass(pass));
    return names;
  }
};

}  // namespace heddle::test
