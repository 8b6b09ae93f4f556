#include "structs.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "heddle/error.h"

namespace heddle::capi {
namespace {

constexpr std::uint64_t kLargestSize = 4096;  // what no version will reach: larger ones were never set
constexpr std::uint64_t kAlignment = 8;       // every version's size is a multiple: another one ends inside a pointer

}  // namespace

void copy_known_fields(std::string_view name, const void* given, void* known, std::size_t known_size,
                       std::size_t first_size) {
  std::uint64_t size = 0;
  std::memcpy(&size, given, sizeof size);
  if (size < first_size || size > kLargestSize || size % kAlignment != 0) {
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("{}.struct_size is {}; the sizeof of the struct, {} here, is accepted", name, size, known_size));
  }
  std::memcpy(known, given, std::min<std::size_t>(size, known_size));
  const auto* bytes = static_cast<const unsigned char*>(given);
  if (size > known_size && std::any_of(bytes + known_size, bytes + size, [](unsigned char x) { return x != 0; })) {
    throw Error(
        ErrorCode::unsupported,
        fmt::format("{} uses fields past byte {}, newer than version {} of c.h, which this library is; leave them "
                    "zero or take a newer library",
                    name, known_size, HEDDLE_C_VERSION));
  }
}

}  // namespace heddle::capi
