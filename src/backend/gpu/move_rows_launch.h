// Rows moved between tensors on a GPU.
#pragma once

#include "backend/device.h"
#include "backend/gpu/gpu.h"

namespace heddle::gpu {

/// Enqueues; the first of a process on each device with these types compiles and loads a kernel. Throws
/// Error(unsupported) for more rows than the kernel takes.
void move_rows(const Gpu& gpu, const backend::MoveArguments& arguments);

}  // namespace heddle::gpu
