// The entry of the fuzzer for bytes that claim to be tensor files: the first byte picks the format. Bytes may be
// refused with an Error; what is read must survive being written and read again. tests/files/mutation_test.cc drives it
// too. With clang: clang++ -std=c++20 -fsanitize=fuzzer,address,undefined -Iinclude -Isrc tests/files/fuzz_files.cc
// src/base/*.cc src/files/*.cc -lfmt -ltbb
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "files/npy.h"
#include "files/safetensors.h"
#include "heddle/error.h"

namespace {

using heddle::Tensor;

/// An abort rather than a failed expectation, because this is what a fuzzer sees.
void require(bool condition) {
  if (!condition) std::abort();
}

void require_same(const Tensor& a, const Tensor& b) {
  require(a.dtype() == b.dtype() && a.shape() == b.shape());
  require(std::memcmp(a.data(), b.data(), static_cast<std::size_t>(a.count() * size_of(a.dtype()))) == 0);
}

void check_safetensors(std::span<const std::byte> bytes) {
  const heddle::TensorFile file = heddle::files::read_safetensors(heddle::files::MemorySource(bytes));
  heddle::files::MemorySink sink;
  heddle::files::write_safetensors(file, sink);
  const heddle::TensorFile again = heddle::files::read_safetensors(heddle::files::MemorySource(sink.bytes));
  require(file.metadata == again.metadata && file.tensors.size() == again.tensors.size());
  for (const auto& [name, tensor] : file.tensors) require_same(tensor, again.tensors.at(name));
}

void check_npy(std::span<const std::byte> bytes) {
  const Tensor tensor = heddle::files::read_npy(heddle::files::MemorySource(bytes));
  heddle::files::MemorySink sink;
  heddle::files::write_npy(tensor, sink);
  require_same(tensor, heddle::files::read_npy(heddle::files::MemorySource(sink.bytes)));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const auto bytes = std::as_bytes(std::span(data, size)).subspan(1);
  try {
    if (data[0] % 2 == 0) {
      check_safetensors(bytes);
    } else {
      check_npy(bytes);
    }
  } catch (const heddle::Error&) {
    return 0;
  }
  return 0;
}
