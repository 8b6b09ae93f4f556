// Refusals of all Hopper kernels.
#pragma once

#include <string>

#include "device/caps.h"
#include "problem/problem.h"

namespace heddle::plan {

/// Empty if Hopper's kernels may take the problem; else a sentence that names the given value and the accepted ones:
/// device, dtype, head dims, mods, sequences. Any strides are taken.
std::string sm90_refuses(const problem::AttentionProblem& problem, const AttentionOptions& options,
                         const device::CudaCaps& caps);

}  // namespace heddle::plan
