// AMD's devices as the launchers of all GPUs see them.
#pragma once

#include <string>

#include "backend/gpu/gpu.h"

namespace heddle::amd {

const gpu::Gpu& amd_gpu();

/// What hipRTC compiles for so that the device runs it: "gfx1100".
const std::string& architecture_of(int device);

}  // namespace heddle::amd
