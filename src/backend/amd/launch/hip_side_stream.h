// A stream of a GPU beside the caller's.
#pragma once

#include <memory>

#include "backend/device.h"

namespace heddle::amd {

/// See DeviceInterface::make_side_stream().
std::unique_ptr<backend::SideStream> make_side_stream(int device, int marks);

}  // namespace heddle::amd
