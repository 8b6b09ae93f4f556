// The entry of the fuzzer for files of the kernel cache (tools/fuzz.py). The first byte picks: bytes as they are, or
// changes of a good file, which get a checksum that fits so that the reader looks further.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "backend/jit/kernel_record.h"
#include "base/hash.h"

namespace {

using heddle::jit::Record;

const std::string kKey = "0123456789abcdef0123456789abcdef";

std::vector<char> good_file() {
  Record record;
  record.code.bytes = {'c', 'u', '\0', 'b'};
  record.code.log = "two\nlines";
  record.code.registers = 168;
  return encode(kKey, record);
}

/// Pairs of a place and a byte.
std::vector<char> changed(const std::uint8_t* data, std::size_t size) {
  std::vector<char> file = good_file();
  for (std::size_t i = 0; i + 1 < size; i += 2) file[data[i] % file.size()] = static_cast<char>(data[i + 1]);
  const std::uint64_t checksum = heddle::base::hash_bytes(file.data() + 24, file.size() - 24, 1);
  std::memcpy(file.data() + 16, &checksum, sizeof checksum);
  return file;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  std::vector<char> file(reinterpret_cast<const char*>(data) + 1, reinterpret_cast<const char*>(data) + size);
  if (data[0] % 2 == 1) file = changed(data + 1, size - 1);
  std::string why;
  const auto record = heddle::jit::decode(kKey, {file.data(), file.size()}, why);
  if (!record && why.empty()) std::abort();
  // A file that is taken says what it holds, to the last byte.
  if (record && encode(kKey, *record) != file) std::abort();
  return 0;
}
