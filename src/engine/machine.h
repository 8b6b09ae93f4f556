// What this process can compute on, as the planner reads it.
#pragma once

#include "device/caps.h"

namespace heddle::engine {

/// The CPU and the GPUs. The first call starts the CUDA driver, where there is one, which takes up to a second.
const device::Machine& machine();
/// The CPU alone, without a look at GPUs: for tensors in host memory.
const device::Machine& cpu_machine();

}  // namespace heddle::engine
