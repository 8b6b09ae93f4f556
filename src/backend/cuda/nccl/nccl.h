// libnccl, opened at run time. NCCL's header is included nowhere: the few types that we need are ours, as its ABI has
// them.
#pragma once

#include <climits>
#include <cstddef>
#include <string>

#include "backend/cuda/driver/cuda_abi.h"

namespace heddle::cuda {

using ncclResult_t = int;
using ncclDataType_t = int;
using ncclComm_t = struct ncclComm*;

inline constexpr ncclResult_t ncclSuccess = 0;
inline constexpr ncclResult_t ncclInProgress = 7;
inline constexpr ncclDataType_t ncclInt8 = 0;

struct ncclUniqueId {
  char internal[128];
};

/// The first members, which NCCL 2.14 has. A newer one takes `version` for the ones that are there.
struct ncclConfig_t {
  std::size_t size = sizeof(ncclConfig_t);
  unsigned int magic = 0xcafebeef;
  unsigned int version = 21400;
  int blocking = 0;  // calls return at once, and CommGetAsyncError says when they are done
  int undefined = INT_MIN;
};

/// NCCL's functions: nccl().Send(...).
struct Nccl {
#define HEDDLE_NCCL_FUNCTION(member, parameters) ncclResult_t(*member) parameters = nullptr;
#include "backend/cuda/nccl/nccl_functions.def"
#undef HEDDLE_NCCL_FUNCTION
  const char* (*GetErrorString)(ncclResult_t result) = nullptr;
};

/// Loaded once, on first use. Throws Error(unsupported) with a sentence that lists where libnccl.so.2 was looked for
/// (the file or folder of HEDDLE_NCCL, else the loader's path, CUDA toolkits and nvidia-nccl wheels), or what was found
/// and is too old (2.14 is the oldest accepted), or which function it lacks.
const Nccl& nccl();

/// 21400: "2.14.0"
std::string nccl_version_text(int version);
/// "NCCL error 5 (invalid usage)"
std::string nccl_words(ncclResult_t result);

}  // namespace heddle::cuda
