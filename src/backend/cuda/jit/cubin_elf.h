// Figures that a cubin holds of its own kernels, for compilers whose log lacks them.
#pragma once

#include <span>

#include "backend/cuda/jit/compiler_log.h"

namespace heddle::cuda::jit {

/// Reads the ELF sections `.nv.info` and `.nv.shared.*`: registers, stack frame and shared memory of the largest kernel
/// (on sm_90 the shared memory may hold the 1024 bytes that the system takes). Spills are part of the stack frame, so
/// its size is given as theirs. A figure that the file lacks is -1, and so is each figure of a file that is no cubin.
/// Reads nothing outside `cubin`, whatever it holds.
Resources resources_of(std::span<const char> cubin);

}  // namespace heddle::cuda::jit
