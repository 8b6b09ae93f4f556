#include "reserved.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <memory>

#include "heddle/error.h"

namespace heddle::cli {
namespace {

constexpr std::int64_t kMostBytes = std::int64_t{1} << 46;  // half of the address space that x86-64 gives a process

std::int64_t bytes_of(DType dtype, const Dims& shape) {
  std::int64_t bytes = size_of(dtype);
  for (const std::int64_t size : shape) {
    if (size == 0) return 0;
    if (bytes > kMostBytes / size) return kMostBytes + 1;
    bytes *= size;
  }
  return bytes;
}

}  // namespace

Tensor reserved(DType dtype, const Dims& shape) {
  const std::int64_t bytes = bytes_of(dtype, shape);
  if (bytes == 0) return Tensor::empty(dtype, shape);
  const auto size = static_cast<std::size_t>(bytes);
  void* const start = bytes > kMostBytes
                          ? MAP_FAILED
                          : mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (start == MAP_FAILED) {
    throw Error(
        ErrorCode::out_of_memory,
        fmt::format("no address space for a tensor {} of {}; up to {} bytes each are accepted, if the limits of "
                    "the process allow it (ulimit -v)",
                    to_string(shape), name(dtype), kMostBytes));
  }
  const std::shared_ptr<void> owner(start, [size](void* address) { munmap(address, size); });
  return Tensor::adopt(TensorView(start, dtype, shape), owner);
}

std::int64_t machine_memory() { return std::int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGE_SIZE); }

}  // namespace heddle::cli
