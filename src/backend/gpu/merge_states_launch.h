// merge_states on a GPU.
#pragma once

#include "backend/device.h"
#include "backend/gpu/gpu.h"

namespace heddle::gpu {

/// Enqueues; the first of a process on each device compiles and loads a kernel. Throws Error(unsupported) for more
/// parts or rows than the kernel takes.
void merge_states(const Gpu& gpu, const backend::MergeArguments& arguments);

}  // namespace heddle::gpu
