// What a cubin says of its own kernels, for compilers whose log does not say it.
#pragma once

#include <span>

#include "backend/cuda/jit/compiler_log.h"

namespace heddle::cuda::jit {

/// From the ELF sections `.nv.info` and `.nv.shared.*`: registers, stack frame and shared memory of the largest kernel
/// (of sm_90, the shared memory may hold the 1024 bytes that the system takes). Spills are part of the stack frame:
/// none without one, else at most its size, which is what is given. What the file does not say, or where it is no such
/// file, is -1. Reads nothing outside `cubin`, whatever it holds.
Resources resources_of(std::span<const char> cubin);

}  // namespace heddle::cuda::jit
