// libamdhip64, opened at run time. No header of HIP is included anywhere: the prototypes that we need are ours
// (hip_abi.h).
#pragma once

#include <string>

#include "backend/amd/driver/hip_abi.h"
#include "backend/libraries/library.h"

namespace heddle::amd {

/// HIP's functions; each a member with the name of the function, without `hip`: hip().Malloc(...). Loaded and started
/// once, on first use. Throws Error(unsupported) with a sentence that lists where libamdhip64 was looked for (the file
/// or folder of HEDDLE_HIP, else the loader's path, ROCm's folders and Python's wheels), or what was found and does not
/// serve, or why it does not start.
const Hip& hip();
/// The library behind hip().
const libraries::Library& hip_library();
/// As hipRuntimeGetVersion counts: 60032830 is 6.0.32830. 0 before hip() has started, and where there is none; loads
/// nothing.
int started_version();
/// 60032830: "6.0"
std::string version_text(int version);

/// Where ROCm's libraries are if they are not on the loader's path: under ROCM_PATH and /opt/rocm, and in Python's
/// wheels of ROCm and PyTorch.
std::vector<std::filesystem::path> rocm_folders();

/// Throws Error(device), or out_of_memory for hipErrorOutOfMemory, with "`doing`: hipError... (HIP's words)" unless
/// `result` is success.
void check(HipError result, const char* doing);

}  // namespace heddle::amd
