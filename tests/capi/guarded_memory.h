// Memory that ends where the process may not read: each block stands before a page without rights, so that a read or a
// write behind it ends the program, in a library without a sanitizer, too.
#pragma once

#include <sys/mman.h>

#include <array>
#include <cstddef>
#include <cstdlib>
#include <cstring>

namespace heddle::test {

class GuardedMemory {
 public:
  static constexpr std::size_t kLargest = std::size_t{1} << 16;

  /// A block of zeros, or null where there is none left or it would be too large. Its end is aligned as its size is.
  std::byte* block(std::size_t size) {
    if (size > kLargest || used_ == regions_.size()) return nullptr;
    std::byte*& region = regions_[used_++];
    if (region == nullptr) region = mapped();
    std::byte* const begin = region + kLargest - size;
    std::memset(begin, 0, size);
    return begin;
  }
  /// A copy of the first `size` bytes of `value`, and zeros behind it.
  template <class T>
  T* copy(const T& value, std::size_t size = sizeof(T)) {
    std::byte* const memory = block(size);
    if (memory == nullptr) std::abort();
    std::memcpy(memory, &value, size < sizeof(T) ? size : sizeof(T));
    return reinterpret_cast<T*>(memory);
  }
  void clear() { used_ = 0; }

 private:
  static std::byte* mapped() {
    constexpr std::size_t kPage = 4096;
    void* const memory = ::mmap(nullptr, kLargest + kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED || ::mprotect(static_cast<std::byte*>(memory) + kLargest, kPage, PROT_NONE) != 0) {
      std::abort();
    }
    return static_cast<std::byte*>(memory);
  }

  std::array<std::byte*, 160> regions_{};
  std::size_t used_ = 0;
};

}  // namespace heddle::test
