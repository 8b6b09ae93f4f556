// The few types and prototypes of the CUDA driver API that the library uses, as the driver's ABI has them. Types keep
// the driver's names; enumerations hold the values in use only.
#pragma once

#include <cstddef>
#include <cstdint>

namespace heddle::cuda {

using CUresult = int;
using CUdevice = int;
using CUcontext = struct CUctx_st*;
using CUmodule = struct CUmod_st*;
using CUfunction = struct CUfunc_st*;
using CUstream = struct CUstream_st*;
using CUevent = struct CUevent_st*;
using CUgraph = struct CUgraph_st*;
using CUgraphExec = struct CUgraphExec_st*;
using CUdeviceptr = unsigned long long;

inline constexpr CUresult CUDA_SUCCESS = 0;
inline constexpr CUresult CUDA_ERROR_INVALID_VALUE = 1;
inline constexpr CUresult CUDA_ERROR_OUT_OF_MEMORY = 2;
inline constexpr CUresult CUDA_ERROR_NOT_INITIALIZED = 3;
inline constexpr CUresult CUDA_ERROR_DEINITIALIZED = 4;
inline constexpr CUresult CUDA_ERROR_NO_DEVICE = 100;
inline constexpr CUresult CUDA_ERROR_INVALID_DEVICE = 101;
inline constexpr CUresult CUDA_ERROR_INVALID_CONTEXT = 201;
inline constexpr CUresult CUDA_ERROR_NOT_FOUND = 500;
inline constexpr CUresult CUDA_ERROR_NOT_READY = 600;

enum class CUdevice_attribute : int {
  clock_rate = 13,  // kHz
  multiprocessor_count = 16,
  l2_cache_size = 38,
  compute_capability_major = 75,
  compute_capability_minor = 76,
  max_shared_memory_per_block_optin = 97,
};

enum class CUfunction_attribute : int {
  max_threads_per_block = 0,
  shared_size_bytes = 1,  // static
  local_size_bytes = 3,   // of a thread: the stack and what spills
  num_regs = 4,
  max_dynamic_shared_size_bytes = 8,
};

enum class CUpointer_attribute : int { memory_type = 2, device_ordinal = 9 };
/// Answers of memory_type; 0 for memory that the driver does not know.
enum class CUmemorytype : unsigned int { unknown = 0, host = 1, device = 2, array = 3, unified = 4 };

enum class CUstream_flags : unsigned int { blocking = 0, non_blocking = 1 };
enum class CUevent_flags : unsigned int { timed = 0, disable_timing = 2 };
enum class CUstreamCaptureStatus : int { none = 0, active = 1, invalidated = 2 };
enum class CUstreamCaptureMode : int { global = 0, thread_local_ = 1, relaxed = 2 };

enum class CUjit_option : int {};  // none is in use

// Launches.

enum class CUlaunchAttributeID : unsigned int {
  ignore = 0,
  cooperative = 2,
  cluster_dimension = 4,
  programmatic_stream_serialization = 6,
};

union CUlaunchAttributeValue {
  char pad[64];
  int cooperative;
  struct {
    unsigned int x, y, z;
  } clusterDim;
  int programmaticStreamSerializationAllowed;
  void* alignment;  // other members of the driver's hold pointers
};

struct CUlaunchAttribute {
  CUlaunchAttributeID id;
  char pad[4];
  CUlaunchAttributeValue value;
};
static_assert(sizeof(CUlaunchAttribute) == 72 && offsetof(CUlaunchAttribute, value) == 8);

struct CUlaunchConfig {
  unsigned int gridDimX, gridDimY, gridDimZ;
  unsigned int blockDimX, blockDimY, blockDimZ;
  unsigned int sharedMemBytes;
  CUstream hStream;
  CUlaunchAttribute* attrs;  // null when there are none
  unsigned int numAttrs;
};
static_assert(sizeof(CUlaunchConfig) == 56 && offsetof(CUlaunchConfig, hStream) == 32);
static_assert(offsetof(CUlaunchConfig, attrs) == 40 && offsetof(CUlaunchConfig, numAttrs) == 48);

// Tensor maps: the descriptors of TMA.

/// Opaque. The driver asks for 64 bytes of alignment, and so do kernels that take one by value.
struct alignas(64) CUtensorMap {
  std::uint64_t opaque[16];
};
static_assert(sizeof(CUtensorMap) == 128);

enum class CUtensorMapDataType : int { uint8 = 0, uint16 = 1, int32 = 3, float16 = 6, float32 = 7, bfloat16 = 9 };
enum class CUtensorMapInterleave : int { none = 0 };
enum class CUtensorMapSwizzle : int { none = 0, bytes32 = 1, bytes64 = 2, bytes128 = 3 };
enum class CUtensorMapL2promotion : int { none = 0, bytes64 = 1, bytes128 = 2, bytes256 = 3 };
enum class CUtensorMapFloatOOBfill : int { zeros = 0 };

/// The driver's functions, loaded by driver(): driver().MemAlloc is cuMemAlloc_v2. One row each in
/// driver_functions.def.
struct Driver {
#define HEDDLE_DRIVER_FUNCTION(member, symbol, parameters) CUresult(*member) parameters = nullptr;
#include "backend/cuda/driver/driver_functions.def"
#undef HEDDLE_DRIVER_FUNCTION
};

}  // namespace heddle::cuda
