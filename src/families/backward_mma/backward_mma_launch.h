// The portable backward family's kernels on a GPU: compiled, their lists on the device, ready to launch.
#pragma once

#include <memory>

#include "backend/backend.h"
#include "backend/gpu/gpu.h"

namespace heddle::backward_mma {

/// Throws as Gpu::load().
std::unique_ptr<backend::Kernel> prepare(const backend::PrepareArguments& arguments, const gpu::Gpu& gpu);

}  // namespace heddle::backward_mma
