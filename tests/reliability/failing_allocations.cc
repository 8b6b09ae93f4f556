#include "reliability/failing_allocations.h"

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <limits>
#include <new>

namespace heddle::test {
namespace {

constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();

std::atomic<std::int64_t> asked{0}, first{kNever}, last{kNever}, live{0};

/// Whether this allocation is one that fails. Called by malloc, so it allocates nothing.
bool fails() {
  if (first.load(std::memory_order_relaxed) == kNever) return false;
  const std::int64_t number = asked.fetch_add(1);
  return number >= first && number <= last;
}

void* counted(void* memory) {
  if (memory != nullptr) live.fetch_add(1, std::memory_order_relaxed);
  return memory;
}

}  // namespace

FailingAllocation::FailingAllocation(std::int64_t at, Which which) {
  asked = 0;
  last = which == kOne ? at : kNever;
  first = at;
}

FailingAllocation::~FailingAllocation() { first = kNever; }

bool FailingAllocation::met() { return asked > first; }

std::int64_t live_blocks() { return live; }

}  // namespace heddle::test

using heddle::test::counted;
using heddle::test::fails;
using heddle::test::live;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)

[[gnu::noinline]] void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  return fails() ? nullptr : counted(std::malloc(size != 0 ? size : 1));
}
[[gnu::noinline]] void* operator new(std::size_t size, std::align_val_t alignment, const std::nothrow_t&) noexcept {
  const auto align = static_cast<std::size_t>(alignment);
  return fails() ? nullptr : counted(std::aligned_alloc(align, (size + align - 1) / align * align));
}
[[gnu::noinline]] void* operator new(std::size_t size) {
  if (void* memory = operator new(size, std::nothrow)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void* operator new(std::size_t size, std::align_val_t alignment) {
  if (void* memory = operator new(size, alignment, std::nothrow)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
  if (memory != nullptr) live.fetch_sub(1, std::memory_order_relaxed);
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { operator delete(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::align_val_t) noexcept { operator delete(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t, std::align_val_t) noexcept {
  operator delete(memory);
}

#else

// glibc's own, behind the names that this program takes from it.
extern "C" {
void* __libc_malloc(std::size_t size);
void* __libc_calloc(std::size_t count, std::size_t size);
void* __libc_realloc(void* memory, std::size_t size);
void* __libc_memalign(std::size_t alignment, std::size_t size);
void __libc_free(void* memory);

void* malloc(std::size_t size) {
  if (!fails()) return counted(__libc_malloc(size));
  errno = ENOMEM;
  return nullptr;
}

void* calloc(std::size_t count, std::size_t size) {
  if (!fails()) return counted(__libc_calloc(count, size));
  errno = ENOMEM;
  return nullptr;
}

void* realloc(void* memory, std::size_t size) {
  if (fails()) {
    errno = ENOMEM;
    return nullptr;
  }
  void* const moved = __libc_realloc(memory, size);
  if (memory == nullptr) return counted(moved);
  if (moved == nullptr && size == 0) live.fetch_sub(1, std::memory_order_relaxed);
  return moved;
}

void* memalign(std::size_t alignment, std::size_t size) {
  if (!fails()) return counted(__libc_memalign(alignment, size));
  errno = ENOMEM;
  return nullptr;
}

void* aligned_alloc(std::size_t alignment, std::size_t size) { return memalign(alignment, size); }

int posix_memalign(void** memory, std::size_t alignment, std::size_t size) {
  void* const made = memalign(alignment, size);
  if (made == nullptr) return ENOMEM;
  *memory = made;
  return 0;
}

void free(void* memory) {
  if (memory != nullptr) live.fetch_sub(1, std::memory_order_relaxed);
  __libc_free(memory);
}
}

#endif
