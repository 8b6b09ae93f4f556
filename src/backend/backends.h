// The kinds of devices of this build, each defined in its own folder.
#pragma once

#include "backend/device.h"

namespace heddle::backend {

const DeviceInterface& cpu_device();
const DeviceInterface& cuda_device();
const DeviceInterface& amd_device();

}  // namespace heddle::backend
