// AMD's devices as the launchers of all GPUs see them.
#pragma once

#include "backend/gpu/gpu.h"

namespace heddle::amd {

const gpu::Gpu& amd_gpu();

}  // namespace heddle::amd
