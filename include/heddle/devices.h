// The devices that this build can compute on.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace heddle {

struct DeviceInfo {
  std::string kind;    // "cpu"
  std::string name;    // "Intel(R) Xeon(R) Processor"
  std::string detail;  // "AVX3, 16 floats a vector, 2 cores, L1 48 KiB, L2 2 MiB"
  std::int64_t memory_bytes = 0;
};
std::vector<DeviceInfo> devices();

/// "0.1.0"
std::string version();

}  // namespace heddle
