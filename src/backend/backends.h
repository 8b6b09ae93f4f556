// The backends and devices of this build, each defined in its own folder.
#pragma once

#include "backend/backend.h"
#include "backend/device.h"

namespace heddle::backend {

const Backend& reference_backend();
const Backend& cpu_backend();
const Backend& cuda_backend();
const Backend& amd_backend();

const DeviceInterface& cpu_device();
const DeviceInterface& cuda_device();
const DeviceInterface& amd_device();

}  // namespace heddle::backend
