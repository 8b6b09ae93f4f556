// The kinds of devices of this build, each defined in its own folder.
#pragma once

#include "backend/device.h"
#include "heddle/attention.h"

namespace heddle::backend {

const DeviceInterface& cpu_device();
const DeviceInterface& cuda_device();
const DeviceInterface& amd_device();

/// The backend that computes on devices of this kind. automatic: the number is none of a kind.
BackendChoice backend_of(DeviceKind kind);

}  // namespace heddle::backend
