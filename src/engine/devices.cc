#include "heddle/devices.h"

#include <fmt/format.h>

#include "backend/cpu/caps.h"

namespace heddle {
namespace {

std::string cache_size(std::int64_t bytes) {
  constexpr std::int64_t kMebi = 1 << 20;
  return bytes >= kMebi && bytes % kMebi == 0 ? fmt::format("{} MiB", bytes / kMebi)
                                              : fmt::format("{} KiB", bytes >> 10);
}

}  // namespace

std::vector<DeviceInfo> devices() {
  const device::Caps& caps = cpu::cpu_caps();
  return {
      {.kind = "cpu",
       .name = caps.name,
       .detail = fmt::format("{}, {} floats a vector, {} cores, L1 {}, L2 {}", caps.simd_target, caps.vector_bytes / 4,
                             caps.cores, cache_size(caps.l1_bytes), cache_size(caps.l2_bytes)),
       .memory_bytes = caps.memory_bytes}};
}

std::string version() { return HEDDLE_VERSION; }

}  // namespace heddle
