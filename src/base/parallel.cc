#include "base/parallel.h"

#include <fmt/format.h>
#include <tbb/global_control.h>
#include <tbb/info.h>
#include <tbb/parallel_for.h>
#include <tbb/partitioner.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "base/kept_arena.h"
#include "base/thread_limit.h"
#include "heddle/error.h"

namespace heddle::base {
namespace {

#if defined(__SANITIZE_THREAD__)

/// ThreadSanitizer sees nothing of the synchronisation inside Debian's oneTBB, which is not built for it, and would
/// report every task. Its builds therefore use plain threads.
void fork_join(int workers, const std::function<void(int worker)>& work) {
  std::vector<std::jthread> threads;
  for (int worker = 0; worker < workers; ++worker) threads.emplace_back(work, worker);
}

#else

/// Runs work(0) to work(workers - 1), each on a thread of its own if there are enough, and waits for them. If a thread
/// does not start, it waits for those that did and throws; some work has then not run.
void fork_join(int wanted, const std::function<void(int worker)>& work) {
  const ThreadShare share(wanted - 1, std::max(wanted, available_cores()) - 1);
  const int workers = 1 + share.granted();
  // An arena never gets more threads than the process is allowed, which is the core count unless it is raised.
  std::optional<tbb::global_control> raised;
  if (workers > available_cores()) {
    raised.emplace(tbb::global_control::max_allowed_parallelism, static_cast<std::size_t>(workers));
  }
  const KeptArena arena(workers);
  (*arena).execute([&] { tbb::parallel_for(0, workers, work, tbb::simple_partitioner{}); });
}

#endif

}  // namespace

int available_cores() { return tbb::info::default_concurrency(); }

void check_threads(int threads) {
  constexpr int kMostThreads = 65536;
  if (threads >= 0 && threads <= kMostThreads) return;
  throw Error(ErrorCode::invalid_argument,
              fmt::format("threads is {}; 0 to {} are accepted, 0 for all cores", threads, kMostThreads));
}

void parallel_tasks(int threads, std::int64_t count, const TaskBody& body) {
  const std::int64_t wanted = threads > 0 ? threads : available_cores();
  const int workers = static_cast<int>(std::min(wanted, count));
  if (workers <= 1) {
    for (std::int64_t task = 0; task < count; ++task) body(0, task);
    return;
  }

  // A shared counter over an ordered list beats TBB's own splitting of uneven tasks: the longest tasks start first and
  // nothing is bound to a worker before it is free.
  std::atomic<std::int64_t> next{0};
  std::exception_ptr first;
  std::mutex mutex;
  const auto work = [&](int worker) {
    try {
      for (std::int64_t task; (task = next.fetch_add(1, std::memory_order_relaxed)) < count;) body(worker, task);
    } catch (...) {
      next.store(count, std::memory_order_relaxed);
      const std::lock_guard lock(mutex);
      if (!first) first = std::current_exception();
    }
  };
  try {
    fork_join(workers, std::ref(work));
  } catch (...) {  // of the threads, since work() throws nothing
  }
  work(0);  // where they are too few, this thread does what is left
  if (first) std::rethrow_exception(first);
}

}  // namespace heddle::base
