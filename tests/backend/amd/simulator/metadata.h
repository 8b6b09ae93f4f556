// The kernels of `llvm-readelf --notes`.
#pragma once

#include <string_view>
#include <vector>

#include "backend/amd/simulator/kernel_info.h"

namespace heddle::amd::simulator {

/// \throws std::runtime_error if the text has no list of kernels
std::vector<KernelInfo> parse_metadata(std::string_view notes);

}  // namespace heddle::amd::simulator
