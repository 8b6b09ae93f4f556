// The few types and prototypes of HIP that the library uses, as HIP 5, 6 and 7 have them. Types are pointers to what
// only HIP knows; enumerations hold the values in use, which have not changed between these versions unless a comment
// says so.
#pragma once

#include <cstddef>

namespace heddle::amd {

using HipError = int;
using HipModule = struct HipModuleHandle*;
using HipFunction = struct HipFunctionHandle*;
using HipStream = struct HipStreamHandle*;
using HipEvent = struct HipEventHandle*;

inline constexpr HipError kHipSuccess = 0;
inline constexpr HipError kHipOutOfMemory = 2;
inline constexpr HipError kHipNoDevice = 100;

enum class HipCopy : int { either_way = 4 };  // hipMemcpyDefault: by the addresses
enum class HipStreamFlags : unsigned { blocking = 0, non_blocking = 1 };
enum class HipEventFlags : unsigned { timed = 0, disable_timing = 2 };
enum class HipCapture : int { none = 0, active = 1, invalidated = 2 };
enum class HipPointerAttribute : int { memory_type = 2, device_ordinal = 9 };
/// hipMemoryType of HIP 5 and that of 6 and later, which numbers anew.
enum class HipMemoryType5 : int { host = 0, device = 1, unified = 3 };
enum class HipMemoryType6 : int { unregistered = 0, host = 1, device = 2, managed = 3, unified = 11 };

/// HIP's functions, loaded by hip(): hip().Malloc is hipMalloc. One row each in hip_functions.def.
struct Hip {
#define HEDDLE_HIP_FUNCTION(result, member, parameters) result(*member) parameters = nullptr;
#include "backend/amd/driver/hip_functions.def"
#undef HEDDLE_HIP_FUNCTION
};

}  // namespace heddle::amd
