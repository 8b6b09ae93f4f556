// The entry of the fuzzer for archives of kernels (tools/fuzz.py). The first byte picks: bytes as they are, or changes
// of a good file, whose head gets a checksum that fits so that the reader looks further.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "backend/jit/kernel_archive.h"
#include "base/hash.h"

namespace {

using namespace heddle::jit;

std::vector<char> good_file() {
  ArchivedKernel first{
      .key = std::string(32, 'a'), .name = "one", .architecture = "sm_90a", .compiler = "x", .record = {}};
  first.record.code.bytes = {'c', 'u', '\0', 'b'};
  ArchivedKernel second{
      .key = std::string(32, 'b'), .name = "two", .architecture = "gfx1100", .compiler = "", .record = {}};
  second.record.verdict = "spills";
  return encode_archive("0.1.0", {first, second});
}

/// Pairs of a place and a byte.
std::vector<char> changed(const std::uint8_t* data, std::size_t size) {
  std::vector<char> file = good_file();
  std::string why;
  const std::size_t head = *head_bytes(file, file.size(), why);
  for (std::size_t i = 0; i + 1 < size; i += 2) {
    file[(data[i] + i / 64 * 256) % file.size()] = static_cast<char>(data[i + 1]);
  }
  const std::uint64_t checksum = heddle::base::hash_bytes(file.data() + 24, head - 24, 1);
  std::memcpy(file.data() + 16, &checksum, sizeof checksum);
  return file;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  std::vector<char> file(reinterpret_cast<const char*>(data) + 1, reinterpret_cast<const char*>(data) + size);
  if (data[0] % 2 == 1) file = changed(data + 1, size - 1);
  std::string why;
  const std::span<const char> bytes = file;
  const auto head_size = head_bytes(bytes.first(std::min(file.size(), kArchiveStart)), file.size(), why);
  if (!head_size) {
    if (why.empty()) std::abort();
    return 0;
  }
  const auto head = decode_head(bytes.first(*head_size), file.size(), why);
  if (!head) {
    if (why.empty()) std::abort();
    return 0;
  }
  for (const ArchiveHead::Entry& entry : head->entries) {  // each lies in the file
    const auto record = decode(entry.key, bytes.subspan(entry.offset, entry.size), why);
    if (!record && why.empty()) std::abort();
  }
  return 0;
}
