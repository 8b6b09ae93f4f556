#include "reliability/failing_calls.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdarg>
#include <cstddef>
#include <limits>

namespace heddle::test {
namespace {

constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();

std::atomic<std::int64_t> seen{0}, first{kNever}, last{kNever};
std::atomic<long> met_call{0};
Intervention chosen{};

[[noreturn]] void die() {
  ::syscall(SYS_kill, ::syscall(SYS_getpid), SIGKILL);
  for (;;) {
  }
}

enum class Fate : std::uint8_t { untouched, fails, is_short, dies_after };

/// Decides about the next system call.
Fate fate(long call) {
  if (first.load(std::memory_order_relaxed) == kNever) return Fate::untouched;
  const std::int64_t number = seen.fetch_add(1);
  if (number < first || number > last) return Fate::untouched;
  met_call = call;
  switch (chosen.what) {
    case Intervention::fails:
      errno = chosen.error;
      return Fate::fails;
    case Intervention::reads_little:
      return Fate::is_short;
    case Intervention::dies_before:
      die();
    case Intervention::dies_after:
      break;
  }
  return Fate::dies_after;
}

/// unlink and unlinkat take away what another failure left, so they are spared. Of those below, POSIX lets a signal
/// interrupt these three alone.
bool can_fail(long number) {
  if (chosen.error == EINTR) return number == SYS_openat || number == SYS_fsync || number == SYS_close;
  return number != SYS_unlink && number != SYS_unlinkat;
}

template <class... Arguments>
long called(long number, Arguments... arguments) {
  const Fate what = fate(number);
  if (what == Fate::fails && can_fail(number)) {
    if (number == SYS_close) ::syscall(number, arguments...);
    errno = chosen.error;
    return -1;
  }
  const long result = ::syscall(number, arguments...);
  if (what == Fate::dies_after) die();
  return result;
}

/// Makes a read or a write, which may do a part of its work.
template <class Bytes, class... Rest>
ssize_t moved(long number, int file, Bytes* bytes, std::size_t size, Rest... rest) {
  const Fate what = fate(number);
  if (what == Fate::fails) return -1;
  const ssize_t result =
      ::syscall(number, file, bytes, what == Fate::is_short && size > 1 ? std::size_t{1} : size, rest...);
  if (what == Fate::dies_after) die();
  return result;
}

mode_t mode_of(int flags, va_list arguments) {
  return (flags & (O_CREAT | __O_TMPFILE)) != 0 ? va_arg(arguments, mode_t) : 0;
}

}  // namespace

InterveningCall::InterveningCall(std::int64_t at, Intervention intervention, bool all_after) {
  seen = 0;
  chosen = intervention;
  last = all_after ? kNever : at;
  first = at;
}

InterveningCall::~InterveningCall() { first = kNever; }

bool InterveningCall::met() { return seen > first; }

long InterveningCall::system_call() { return met_call; }

}  // namespace heddle::test

using heddle::test::called;
using heddle::test::mode_of;
using heddle::test::moved;

extern "C" {

int openat(int folder, const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_of(flags, arguments);
  va_end(arguments);
  return static_cast<int>(called(SYS_openat, folder, path, flags, mode));
}

int open(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_of(flags, arguments);
  va_end(arguments);
  return static_cast<int>(called(SYS_openat, AT_FDCWD, path, flags, mode));
}

ssize_t read(int file, void* bytes, std::size_t size) { return moved(SYS_read, file, bytes, size); }
ssize_t write(int file, const void* bytes, std::size_t size) { return moved(SYS_write, file, bytes, size); }
ssize_t pread(int file, void* bytes, std::size_t size, off_t offset) {
  return moved(SYS_pread64, file, bytes, size, offset);
}
int close(int file) { return static_cast<int>(called(SYS_close, file)); }
int fsync(int file) { return static_cast<int>(called(SYS_fsync, file)); }
int fchmod(int file, mode_t mode) noexcept { return static_cast<int>(called(SYS_fchmod, file, mode)); }
int mkdir(const char* path, mode_t mode) noexcept { return static_cast<int>(called(SYS_mkdir, path, mode)); }
int rename(const char* from, const char* to) noexcept { return static_cast<int>(called(SYS_rename, from, to)); }
int renameat(int from_folder, const char* from, int to_folder, const char* to) noexcept {
  return static_cast<int>(called(SYS_renameat, from_folder, from, to_folder, to));
}
int linkat(int from_folder, const char* from, int to_folder, const char* to, int flags) noexcept {
  return static_cast<int>(called(SYS_linkat, from_folder, from, to_folder, to, flags));
}
int unlink(const char* path) noexcept { return static_cast<int>(called(SYS_unlink, path)); }
int unlinkat(int folder, const char* path, int flags) noexcept {
  return static_cast<int>(called(SYS_unlinkat, folder, path, flags));
}
int futimens(int file, const timespec times[2]) noexcept {
  return static_cast<int>(called(SYS_utimensat, file, nullptr, times, 0));
}
}
