// The error of a device without room.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

namespace heddle::libraries {

struct MemoryLeft {
  std::size_t free, total;  // bytes
};

/// Throws ErrorCode::out_of_memory: `bytes` could not be allocated on `device` ("CUDA device 0"). `left`: what `driver`
/// ("the driver") says of the device's memory, if it says anything.
[[noreturn]] void throw_out_of_memory(std::size_t bytes, std::string_view device, std::string_view driver,
                                      const std::optional<MemoryLeft>& left);

}  // namespace heddle::libraries
