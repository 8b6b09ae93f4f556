// The devices of this process, as the planner reads them.
#pragma once

#include "device/caps.h"
#include "heddle/attention.h"

namespace heddle::engine {

/// The CPU and the GPUs. The first call starts their drivers, where there are any, which takes up to a second.
const device::Machine& machine();
/// The CPU alone, without a look at GPUs: for tensors in host memory.
const device::Machine& cpu_machine();

/// The machine for a plan of tensors on this device. Drivers take long to start, so only a plan that may use a GPU
/// looks for one.
const device::Machine& machine_for(const Device& device, const AttentionOptions& options);

}  // namespace heddle::engine
