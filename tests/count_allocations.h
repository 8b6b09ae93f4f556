// Counts what a program allocates with new: replaces the operators, so one file of a program includes this.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace heddle::test {
inline std::atomic<std::int64_t> allocations = 0;
}

// Counted: everything that this program allocates with new. Not inlined, where GCC takes malloc and delete for a
// mismatch. All forms of a single object
// are replaced: a sanitizer's own would not go with these deletes.
[[gnu::noinline]] void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  ++heddle::test::allocations;
  return std::malloc(size != 0 ? size : 1);
}
[[gnu::noinline]] void* operator new(std::size_t size, std::align_val_t alignment, const std::nothrow_t&) noexcept {
  ++heddle::test::allocations;
  const auto align = static_cast<std::size_t>(alignment);
  return std::aligned_alloc(align, (size + align - 1) / align * align);
}
[[gnu::noinline]] void* operator new(std::size_t size) {
  if (void* memory = operator new(size, std::nothrow)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void* operator new(std::size_t size, std::align_val_t alignment) {
  if (void* memory = operator new(size, alignment, std::nothrow)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }

namespace heddle::test {

/// How often `work` allocates, on any thread.
template <class Work>
std::int64_t allocations_of(Work&& work) {
  const std::int64_t before = allocations;
  work();
  return allocations - before;
}

}  // namespace heddle::test
