// The Hopper forward family's kernel: compiled, its lists on the device, ready to launch.
#pragma once

#include <memory>

#include "backend/backend.h"

namespace heddle::forward_sm90 {

/// Throws jit::Rejected when the compiler makes this plan's kernel badly, Error(compile), Error(unsupported) without
/// NVRTC, Error(out_of_memory).
std::unique_ptr<backend::Kernel> prepare(const backend::PrepareArguments& arguments);

}  // namespace heddle::forward_sm90
