#include "base/kept_arena.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <mutex>
#include <utility>
#include <vector>

namespace heddle::base {
namespace {

/// The most arenas that wait for a call. One takes about 10 KB.
constexpr std::size_t kMostIdle = 64;

struct Idle {
  std::mutex mutex;
  std::vector<std::unique_ptr<tbb::task_arena>> arenas;  // the one used last is the last
};

/// Never destroyed: threads may still compute while the process ends.
Idle& idle() {
  static Idle& once = *[] {
    auto made = std::make_unique<Idle>();
    made->arenas.reserve(kMostIdle + 1);  // so that giving one back allocates nothing
    return made.release();
  }();
  return once;
}

/// An idle arena of `threads` threads, or null.
std::unique_ptr<tbb::task_arena> take(int threads) {
  Idle& all = idle();
  const std::lock_guard lock(all.mutex);
  const auto found = std::find_if(all.arenas.rbegin(), all.arenas.rend(),
                                  [&](const auto& arena) { return arena->max_concurrency() == threads; });
  if (found == all.arenas.rend()) return nullptr;
  std::unique_ptr<tbb::task_arena> taken = std::move(*found);
  all.arenas.erase(std::next(found).base());
  return taken;
}

}  // namespace

KeptArena::KeptArena(int threads) : arena_(take(threads)) {
  if (arena_ == nullptr) arena_ = std::make_unique<tbb::task_arena>(threads);
}

KeptArena::~KeptArena() {
  Idle& all = idle();
  std::unique_ptr<tbb::task_arena> oldest;  // ends after the lock
  const std::lock_guard lock(all.mutex);
  all.arenas.push_back(std::move(arena_));
  if (all.arenas.size() <= kMostIdle) return;
  oldest = std::move(all.arenas.front());
  all.arenas.erase(all.arenas.begin());
}

}  // namespace heddle::base
