// The capabilities of this machine's cores.
#pragma once

#include "device/caps.h"

namespace heddle::cpu {

/// Found once, at the first call.
const device::Caps& cpu_caps();

}  // namespace heddle::cpu
