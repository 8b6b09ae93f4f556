#include "backend/gpu/row_tensors.h"

#include <fmt/format.h>

#include <cstdint>

#include "heddle/error.h"

namespace heddle::gpu {

void check_address(std::string_view name, const void* address, std::int64_t bytes) {
  if (reinterpret_cast<std::uintptr_t>(address) % static_cast<std::uintptr_t>(bytes) == 0) return;
  throw Error(
      ErrorCode::invalid_argument,
      fmt::format("{} is at {}; the kernel was planned for an address that {} divides (plan for tensors at such "
                  "addresses as this one, or copy it)",
                  name, fmt::ptr(address), bytes));
}

}  // namespace heddle::gpu
