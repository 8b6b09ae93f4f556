// Which problems share a measurement.
#pragma once

#include <string>

#include "plan/plan.h"

namespace heddle::tune {

/// A text that says on what machine the problem runs and which kernels it needs: pass, dtypes, head dims, group,
/// normalizer, mods with the params of the mask, kinds of lengths and pages; and its size, each extent rounded up to a
/// power of two. Not the number of threads, on which results must not depend. The same text: the same measurement
/// serves both.
std::string problem_class(const plan::Request& request);

}  // namespace heddle::tune
