// merge_states on a GPU.
#pragma once

#include "backend/device.h"

namespace heddle::cuda {

/// Enqueues; the first of a process on each device compiles and loads a kernel. Throws Error(unsupported) for more
/// parts or rows than the kernel takes.
void merge_states(const backend::MergeArguments& arguments);

}  // namespace heddle::cuda
