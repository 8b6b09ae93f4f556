// Arenas of oneTBB that are used again. oneTBB 2021.8 frees an arena only if a worker passes by after its last task. A
// thread that opens one arena a call leaves up to 13 KB behind each while its workers are busy, and each call looks
// through all that are left: after 3000 calls in a row a call took three times as long as the first.
#pragma once

#include <tbb/task_arena.h>

#include <memory>

namespace heddle::base {

/// An arena for this object's thread alone, until the object dies. Then the process keeps it for the next one.
class KeptArena {
 public:
  /// `threads`: with the caller.
  explicit KeptArena(int threads);
  ~KeptArena();
  KeptArena(const KeptArena&) = delete;
  KeptArena& operator=(const KeptArena&) = delete;

  tbb::task_arena& operator*() const { return *arena_; }

 private:
  std::unique_ptr<tbb::task_arena> arena_;
};

}  // namespace heddle::base
