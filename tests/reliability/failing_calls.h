// Comes between this process and the system calls by which the library reads and writes files: one of them fails, does
// half of its work, or is the last thing that the process does.
#pragma once

#include <cstdint>

namespace heddle::test {

/// An event in place of a system call, or beside it.
struct Intervention {
  enum What : std::uint8_t {
    fails,         // with `error`
    reads_little,  // a read or a write does one byte; other calls go on
    dies_before,   // the process ends by SIGKILL
    dies_after,
  } what;
  int error = 0;
};

/// While it lives, system call number `at` of those below is intervened in, counted from 0; with all_after, each later
/// one, too. Counted are open, openat, read, pread, write, close, fsync, fchmod, mkdir, renameat, rename, linkat,
/// unlink, unlinkat and futimens, with which the C++ library opens and removes files, too. The file is closed where
/// close fails. unlink and unlinkat never fail: they take away what another failure left.
class InterveningCall {
 public:
  InterveningCall(std::int64_t at, Intervention intervention, bool all_after = false);
  ~InterveningCall();
  InterveningCall(const InterveningCall&) = delete;
  InterveningCall& operator=(const InterveningCall&) = delete;

  /// Whether that call came.
  static bool met();
  /// The number of that call among the system's: SYS_write, say.
  static long system_call();
};

}  // namespace heddle::test
