// libcuda, opened at run time. No CUDA header is included anywhere: the prototypes that we need are ours (cuda_abi.h).
#pragma once

#include <string>

#include "backend/cuda/driver/cuda_abi.h"

namespace heddle::cuda {

/// The driver's functions; each a member with the name of the function, without `cu`: driver().MemAlloc(...). Loaded
/// and started once, on first use. Throws Error(unsupported) with a sentence that lists where libcuda.so.1 was looked
/// for (the file or folder of HEDDLE_CUDA_DRIVER, else the loader's path and where containers mount it), or what was
/// found and is too old (12.0 is the oldest accepted), or which function it lacks, or why it does not start.
const Driver& driver();
/// The version of the driver that driver() has started, as the driver counts: 13000. 0 before that, or without a
/// driver. Loads nothing.
int started_version();
/// 13000: "13.0"
std::string version_text(int version);
/// Empty when driver() works and there is at least one device; else the reason, a sentence. Never throws.
std::string driver_missing();

/// Throws Error(device), or out_of_memory for CUDA_ERROR_OUT_OF_MEMORY, with "`doing`: CUDA_ERROR_... (the driver's
/// words)" unless `result` is success.
void check(CUresult result, const char* doing);

}  // namespace heddle::cuda
