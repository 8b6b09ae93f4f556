#include "device/caps.h"

#include <fmt/format.h>

namespace heddle::device {

std::string size_text(std::int64_t bytes) {
  constexpr std::int64_t kMebi = 1 << 20;
  return bytes >= kMebi && bytes % kMebi == 0 ? fmt::format("{} MiB", bytes / kMebi)
                                              : fmt::format("{} KiB", bytes >> 10);
}

std::string architecture_of(const CudaCaps& caps) {
  return fmt::format("sm_{}{}{}", caps.major, caps.minor, caps.major == 9 ? "a" : "");
}

}  // namespace heddle::device
