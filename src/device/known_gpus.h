// GPUs whose plans can be made where they are not.
#pragma once

#include <array>
#include <string_view>
#include <utility>

#include "device/caps.h"

namespace heddle::device {

/// Names as the command line takes them. As the driver of an NVIDIA H200 SXM tells.
inline const std::array<std::pair<std::string_view, CudaCaps>, 1> kKnownGpus = {
    {{"h200",
      {.index = 0,
       .name = "NVIDIA H200",
       .major = 9,
       .minor = 0,
       .multiprocessors = 132,
       .shared_memory_bytes = 227 << 10,
       .l2_bytes = std::int64_t{50} << 20,
       .memory_bytes = std::int64_t{140} << 30,
       .driver_version = 12000}}}};

}  // namespace heddle::device
