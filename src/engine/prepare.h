// From a request to a kernel that is ready.
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

/// The planner's first choice, or the one that a measurement found fastest (engine/tuning.h), prepared, with what
/// became of tuning. Throws as plan::choose() and prepare_first().
Prepared prepare_chosen(const plan::Request& request, const plan::RowsOf& rows_of);

using Prepare = std::function<std::unique_ptr<backend::Kernel>(const plan::Choice&)>;

/// The first choice whose kernel the compiler makes well (backend::Rejected: not); its plan's `rejected` tells of
/// those before it. Where there is none, the first one that it makes at all: it spills, but is right. Throws
/// Error(compile) with all reasons when there is none either; other errors pass.
Prepared prepare_first(std::vector<plan::Choice> choices, const Prepare& prepare);

}  // namespace heddle::engine
