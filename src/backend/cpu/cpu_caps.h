// The capabilities of this machine's cores.
#pragma once

#include <cstdint>
#include <string>

#include "device/caps.h"

namespace heddle::cpu {

/// Bytes of the cache of level 3 that Linux describes in such a folder, which ends with '/'; 0 if it describes none.
/// sysconf() gives that of all cores of a package where each group of cores has its own (AMD).
std::int64_t l3_bytes_in(const std::string& folder);

/// Found once, at the first call.
const device::Caps& cpu_caps();

}  // namespace heddle::cpu
