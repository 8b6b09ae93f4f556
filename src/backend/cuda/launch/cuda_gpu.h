// CUDA devices as the launchers of all GPUs see them.
#pragma once

#include "backend/gpu/gpu.h"

namespace heddle::cuda {

const gpu::Gpu& cuda_gpu();

}  // namespace heddle::cuda
