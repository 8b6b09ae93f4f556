// Names of planned kernels in records of measurements.
#pragma once

#include <string>

#include "plan/plan.h"

namespace heddle::tune {

/// "forward_mma 128 x 64, fragments mma, row_waves 4, ...": the family, the tile, every setting of its configuration,
/// and what differs beside it. Plans with the same name differ in lists and addresses alone.
std::string kernel_name(const plan::Plan& plan);

}  // namespace heddle::tune
