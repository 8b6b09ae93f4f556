// From the plans that would do to a kernel that is ready.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "backend/backend.h"
#include "plan/plan.h"

namespace heddle::engine {

struct Prepared {
  plan::Plan plan;
  std::shared_ptr<const BlockMask> block_mask;
  std::unique_ptr<backend::Kernel> kernel;
};

using Prepare = std::function<std::unique_ptr<backend::Kernel>(const plan::Choice&)>;

/// The first choice whose kernel the compiler makes well (cuda::jit::Rejected: not); its plan's `rejected` tells of
/// those before it. Throws Error(compile) with all reasons when there is none; other errors pass.
Prepared prepare_first(std::vector<plan::Choice> choices, const Prepare& prepare);

/// Through the plan's backend. Throws unsupported when that does not take the problem.
std::unique_ptr<backend::Kernel> prepare(const backend::PrepareArguments& arguments);

}  // namespace heddle::engine
