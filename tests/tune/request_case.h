// A problem as the planner gets it.
#pragma once

#include <optional>

#include "engine/machine.h"
#include "heddle/backward.h"
#include "plan/plan.h"

namespace heddle::tune {

/// Tensors without memory, for plans of them.
struct RequestCase {
  Dims q{2, 4, 100, 32}, k{2, 2, 120, 32}, v{2, 2, 120, 32};
  DType dtype = DType::f32;
  bool lse = true;
  AttentionOptions options{};
  device::Machine machine = engine::cpu_machine();
  AttentionTensors tensors{};
  problem::AttentionProblem problem{};

  plan::Request request() {
    tensors = {ConstTensorView(nullptr, dtype, q),
               ConstTensorView(nullptr, dtype, k),
               ConstTensorView(nullptr, dtype, v),
               TensorView(nullptr, dtype, Dims{q[0], q[1], q[2], v[3]}),
               std::nullopt,
               std::nullopt};
    if (lse) tensors.lse = TensorView(nullptr, DType::f32, Dims{q[0], q[1], q[2]});
    problem = problem::validate(tensors, options);
    return {problem, tensors, options, machine, nullptr};
  }
};

}  // namespace heddle::tune
