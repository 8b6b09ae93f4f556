// The devices that this build can compute on.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "heddle/tensor.h"

namespace heddle {

struct DeviceInfo {
  std::string kind;  // "cpu", "cuda", "rocm"
  std::string name;  // "Intel(R) Xeon(R) Processor", "NVIDIA H200"
  /// "AVX3, 16 floats a vector, 2 cores, L1 48 KiB, L2 2 MiB"; of a GPU also what its kernels need: "compute capability
  /// 9.0, 132 SMs, 227 KiB shared memory a block, L2 50 MiB, driver of CUDA 13.0, NVRTC 13.0"
  std::string detail;
  std::int64_t memory_bytes = 0;
};
/// The CPU, then the GPUs in the driver's order.
std::vector<DeviceInfo> devices();
/// Why there is no device of this kind: a sentence. Empty when there is one.
std::string missing(DeviceKind kind);

/// The folder of compiled kernels and records of tuning: HEDDLE_CACHE_DIR, else heddle in XDG_CACHE_HOME, else in
/// ~/.cache. It need not exist. Empty: no folder can be determined.
std::string cache_folder();

/// "major.minor.patch", from the project() line of CMakeLists.txt.
std::string version();

}  // namespace heddle
