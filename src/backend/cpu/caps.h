// What this machine's cores can do.
#pragma once

#include "device/caps.h"

namespace heddle::cpu {

/// Found once, at the first call.
const device::Caps& cpu_caps();

}  // namespace heddle::cpu
