// What no backward on a GPU takes.
#pragma once

#include <string>

#include "plan/plan.h"

namespace heddle::plan {

/// Tensors that serve several sequences and whose gradients are asked for: these would be sums over the sequences. A
/// sentence that names one; empty where there is none.
std::string refuse_broadcasts(const Request& request);

}  // namespace heddle::plan
