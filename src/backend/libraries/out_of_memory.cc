#include "backend/libraries/out_of_memory.h"

#include <fmt/format.h>

#include <string>

#include "heddle/error.h"

namespace heddle::libraries {
namespace {

std::string in_mebi(std::size_t bytes) {
  constexpr double kMebi = 1 << 20;
  const double mebi = static_cast<double>(bytes) / kMebi;
  return mebi < 1024 ? fmt::format("{:.1f} MiB", mebi) : fmt::format("{:.1f} GiB", mebi / 1024);
}

}  // namespace

void throw_out_of_memory(std::size_t bytes, std::string_view device, std::string_view driver,
                         const std::optional<MemoryLeft>& left) {
  const std::string rest = left ? fmt::format("{} of {} are free", in_mebi(left->free), in_mebi(left->total))
                                : fmt::format("{} does not say what is free", driver);
  throw Error(ErrorCode::out_of_memory,
              fmt::format("cannot allocate {} bytes ({}) on {}: {}", bytes, in_mebi(bytes), device, rest));
}

}  // namespace heddle::libraries
