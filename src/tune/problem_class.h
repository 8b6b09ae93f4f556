// Which problems share a measurement.
#pragma once

#include <string>

#include "plan/plan.h"

namespace heddle::tune {

/// A text that says on what machine the problem runs and which kernels it needs: pass, dtypes, head dims, group,
/// normalizer, mods with the params of the mask, kinds of lengths and pages; and its size, each extent rounded up to a
/// power of two. The number of threads is left out: results must not depend on it. Problems of equal texts share a
/// measurement.
std::string problem_class(const plan::Request& request);

}  // namespace heddle::tune
