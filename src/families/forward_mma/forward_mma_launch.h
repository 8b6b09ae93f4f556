// The portable forward family's kernel on a GPU: compiled, its lists on the device, ready to launch.
#pragma once

#include <memory>

#include "backend/backend.h"
#include "backend/gpu/gpu.h"

namespace heddle::forward_mma {

/// Throws as Gpu::load().
std::unique_ptr<backend::Kernel> prepare(const backend::PrepareArguments& arguments, const gpu::Gpu& gpu);

}  // namespace heddle::forward_mma
