// Values read by mods that GPU kernels refuse, in sentences.
#pragma once

#include <string>

#include "problem/problem.h"

namespace heddle::plan {

/// Empty if a kernel has room for all params and captures and they are on q's device; else why not.
std::string refuses_values(const problem::AttentionProblem& problem, const Bindings& bindings);

}  // namespace heddle::plan
