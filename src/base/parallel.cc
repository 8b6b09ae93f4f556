#include "base/parallel.h"

#include <tbb/global_control.h>
#include <tbb/info.h>
#include <tbb/parallel_for.h>
#include <tbb/partitioner.h>
#include <tbb/task_arena.h>

#include <algorithm>
#include <atomic>
#include <optional>

namespace heddle::base {

int available_cores() { return tbb::info::default_concurrency(); }

void parallel_tasks(int threads, std::int64_t count, const std::function<void(int worker, std::int64_t task)>& body) {
  const std::int64_t wanted = threads > 0 ? threads : available_cores();
  const int workers = static_cast<int>(std::min(wanted, count));
  if (workers <= 1) {
    for (std::int64_t task = 0; task < count; ++task) body(0, task);
    return;
  }

  // An arena never gets more threads than the process is allowed, which is the core count unless it is raised.
  std::optional<tbb::global_control> raised;
  if (workers > available_cores()) {
    raised.emplace(tbb::global_control::max_allowed_parallelism, static_cast<std::size_t>(workers));
  }
  // A shared counter over an ordered list beats TBB's own splitting of uneven tasks: the longest tasks start first and
  // nothing is bound to a worker before it is free.
  std::atomic<std::int64_t> next{0};
  const auto work = [&](int worker) {
    try {
      for (std::int64_t task; (task = next.fetch_add(1, std::memory_order_relaxed)) < count;) body(worker, task);
    } catch (...) {
      next.store(count, std::memory_order_relaxed);
      throw;
    }
  };
  tbb::task_arena arena(workers);
  arena.execute([&] { tbb::parallel_for(0, workers, work, tbb::simple_partitioner{}); });
}

}  // namespace heddle::base
