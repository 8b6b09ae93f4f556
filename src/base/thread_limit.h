// How many threads the system starts. oneTBB has its threads start each other, and where that fails (a container's limit
// of processes, address space) the process ends. So they are started here, before it needs them, where a failure is an
// exception. A limit that was met once holds for the process.
#pragma once

namespace heddle::base {

/// Limits a call to a number of threads while the object lives.
class ThreadShare {
 public:
  /// Asks for `wanted` threads besides the caller's, of a pool that never has more than `most`.
  ThreadShare(int wanted, int most);
  ~ThreadShare();
  ThreadShare(const ThreadShare&) = delete;
  ThreadShare& operator=(const ThreadShare&) = delete;

  /// How many of them there are.
  int granted() const { return granted_; }

 private:
  int granted_ = 0;
};

}  // namespace heddle::base
