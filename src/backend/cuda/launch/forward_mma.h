// The portable forward family on a CUDA device.
#pragma once

#include <memory>

#include "backend/backend.h"

namespace heddle::cuda {

/// Throws as jit::build.
std::unique_ptr<backend::Kernel> prepare_forward_mma(const backend::PrepareArguments& arguments);

}  // namespace heddle::cuda
