// GPUs whose plans can be made where they are not.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "device/amd_architectures.h"
#include "device/caps.h"
#include "heddle/tensor.h"

namespace heddle::device {

struct KnownGpu {
  std::string_view name;  // as the command line takes it
  DeviceKind kind;
  CudaCaps caps;
};

/// The row of an NVIDIA GPU.
inline CudaCaps cuda_caps(const char* name, int major, int minor, int multiprocessors, int shared_kib, int l2_mib,
                          int memory_gib) {
  CudaCaps caps;
  caps.name = name;
  caps.major = major;
  caps.minor = minor;
  caps.multiprocessors = multiprocessors;
  caps.shared_memory_bytes = std::int64_t{shared_kib} << 10;
  caps.l2_bytes = std::int64_t{l2_mib} << 20;
  caps.memory_bytes = std::int64_t{memory_gib} << 30;
  caps.driver_version = 12000;
  return caps;
}

/// The H200: as the driver of an NVIDIA H200 SXM tells. The others: as NVIDIA's documents tell.
inline const std::array<KnownGpu, 11> kKnownGpus = {
    {{.name = "h200", .kind = DeviceKind::cuda, .caps = cuda_caps("NVIDIA H200", 9, 0, 132, 227, 50, 140)},
     {.name = "h100", .kind = DeviceKind::cuda, .caps = cuda_caps("NVIDIA H100 80GB HBM3", 9, 0, 132, 227, 50, 80)},
     {.name = "h20", .kind = DeviceKind::cuda, .caps = cuda_caps("NVIDIA H20", 9, 0, 78, 227, 60, 96)},
     {.name = "a100", .kind = DeviceKind::cuda, .caps = cuda_caps("NVIDIA A100-SXM4-80GB", 8, 0, 108, 163, 40, 80)},
     {.name = "a10", .kind = DeviceKind::cuda, .caps = cuda_caps("NVIDIA A10", 8, 6, 72, 99, 6, 24)},
     {.name = "a6000", .kind = DeviceKind::cuda, .caps = cuda_caps("NVIDIA RTX A6000", 8, 6, 84, 99, 6, 48)},
     {.name = "rtx3090", .kind = DeviceKind::cuda, .caps = cuda_caps("NVIDIA GeForce RTX 3090", 8, 6, 82, 99, 6, 24)},
     {.name = "l4", .kind = DeviceKind::cuda, .caps = cuda_caps("NVIDIA L4", 8, 9, 58, 99, 48, 24)},
     {.name = "l40s", .kind = DeviceKind::cuda, .caps = cuda_caps("NVIDIA L40S", 8, 9, 142, 99, 96, 48)},
     {.name = "rtx4090", .kind = DeviceKind::cuda, .caps = cuda_caps("NVIDIA GeForce RTX 4090", 8, 9, 128, 99, 72, 24)},
     {.name = "rtx5090",
      .kind = DeviceKind::cuda,
      .caps = cuda_caps("NVIDIA GeForce RTX 5090", 12, 0, 170, 99, 96, 32)}}};

/// A machine with one of these GPUs alone, and the GPU's kind.
struct KnownMachine {
  Machine machine;
  DeviceKind kind;
  std::string architecture;  // that its kernels are compiled for: "sm_90a"
};
/// `machine`, with the GPU of that name. "h100:114" is one with 114 multiprocessors (AMD: compute units). Throws
/// invalid_argument, with all names, where there is none.
KnownMachine with_known_gpu(Machine machine, std::string_view name);

/// The GPUs of an architecture ("sm_86", "sm_90" or "sm_90a", "gfx1100"), or the one of a name. Throws
/// invalid_argument, with all names and architectures, where there is none.
std::vector<std::string> known_gpus_of(std::string_view name);

}  // namespace heddle::device
