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

/// The first choice whose kernel the compiler makes well (backend::Rejected: not); its plan's `rejected` tells of
/// those before it. Throws Error(compile) with all reasons when there is none; other errors pass.
Prepared prepare_first(std::vector<plan::Choice> choices, const Prepare& prepare);

/// By the plan's family, over the lists of its tiles.
std::unique_ptr<backend::Kernel> prepare(const plan::Plan& plan, const BlockMask* block_mask,
                                         const plan::Request& request, const Bindings& bindings);

}  // namespace heddle::engine
