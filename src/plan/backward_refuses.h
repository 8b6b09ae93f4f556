// Refusals of backwards whose tiles are one sequence's each: backward_sm90.
#pragma once

#include <string>

#include "plan/plan.h"

namespace heddle::plan {

/// Refuses tensors that serve several sequences and whose gradients are asked for: these would be sums over the
/// sequences. A sentence that names the first; empty if there is none.
std::string refuse_broadcasts(const Request& request);

}  // namespace heddle::plan
