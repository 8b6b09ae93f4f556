#include "base/thread_limit.h"

#include <tbb/global_control.h>
#include <tbb/task_arena.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <exception>
#include <memory>
#include <mutex>

namespace heddle::base {
namespace {

struct Limit {
  std::mutex mutex;
  int started = 0;  // they stay
  int used = 0;     // by calls that run now
  bool met = false;
};

Limit& limit() {
  static Limit limit;
  return limit;
}

/// Raises oneTBB's limit to `count` threads and starts the missing ones from this thread: for each it opens an arena
/// whose task holds the new thread until all have been asked for. Returns how many there are.
int start(int count, int most) {
  const tbb::global_control raised(tbb::global_control::max_allowed_parallelism, static_cast<std::size_t>(most) + 1);
  const auto end = std::make_shared<std::atomic<bool>>(false);
  int started = 0;
  try {
    for (; started < count; ++started) {
      tbb::task_arena one(1, 0);  // with no place for this thread; it lives until its task has run
      one.enqueue([end] { end->wait(false); });
    }
  } catch (const std::exception&) {  // no thread, or no memory for it
  }
  *end = true;
  end->notify_all();
  return started;
}

}  // namespace

ThreadShare::ThreadShare(int wanted, int most) {
  Limit& all = limit();
  const std::lock_guard lock(all.mutex);
  // Calls that run at the same time share oneTBB's threads.
  const int needed = std::min(all.used + wanted, most);
  if (needed > all.started && !all.met) {
    all.started = std::max(all.started, start(needed, most));
    all.met = all.started < needed;  // oneTBB counts the thread that failed, and would not start it again
  }
  granted_ = needed <= all.started ? wanted : std::clamp(all.started - all.used, 0, wanted);
  all.used += granted_;
}

ThreadShare::~ThreadShare() {
  const std::lock_guard lock(limit().mutex);
  limit().used -= granted_;
}

}  // namespace heddle::base
