// append_kv on a GPU.
#pragma once

#include "backend/gpu/gpu.h"
#include "heddle/kv_cache.h"

namespace heddle::gpu {

/// Enqueues; the first of a process with these dtypes on each device compiles and loads a kernel. Throws
/// Error(unsupported) for more rows than the kernel counts.
void append_kv(const Gpu& gpu, const AppendTensors& tensors, const AppendOptions& options);

}  // namespace heddle::gpu
