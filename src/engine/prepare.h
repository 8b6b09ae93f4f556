// From planned kernels to one that is ready.
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

/// The first choice whose kernel the compiler makes well (backend::Rejected: not); its plan's `rejected` tells of those
/// before it. If there is none, the first one that it makes at all: it spills, but is right. Throws Error(compile) with
/// all reasons if the compiler makes none; other errors pass.
Prepared prepare_first(std::vector<plan::Choice> choices, const Prepare& prepare);

}  // namespace heddle::engine
