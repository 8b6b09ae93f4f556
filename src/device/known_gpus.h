// GPUs whose plans can be made where they are not.
#pragma once

#include <array>
#include <string_view>

#include "device/caps.h"
#include "heddle/tensor.h"

namespace heddle::device {

struct KnownGpu {
  std::string_view name;  // as the command line takes it
  DeviceKind kind;
  CudaCaps caps;
};

/// As the driver of an NVIDIA H200 SXM tells.
inline const std::array<KnownGpu, 1> kKnownGpus = {{{.name = "h200",
                                                     .kind = DeviceKind::cuda,
                                                     .caps = {.index = 0,
                                                              .name = "NVIDIA H200",
                                                              .major = 9,
                                                              .minor = 0,
                                                              .multiprocessors = 132,
                                                              .shared_memory_bytes = 227 << 10,
                                                              .l2_bytes = std::int64_t{50} << 20,
                                                              .memory_bytes = std::int64_t{140} << 30,
                                                              .driver_version = 12000}}}};

}  // namespace heddle::device
