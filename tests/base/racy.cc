// A race on purpose, in the tasks of the library's own threads: the build for ThreadSanitizer has to find it.
#include <atomic>
#include <cstdio>
#include <thread>

#include "base/parallel.h"

int main() {
  std::atomic<int> arrived{0};
  int shared = 0;
  heddle::base::parallel_tasks(2, 2, [&](int, std::int64_t) {
    // Both tasks run at once; relaxed, so that this orders nothing.
    arrived.fetch_add(1, std::memory_order_relaxed);
    while (arrived.load(std::memory_order_relaxed) < 2) std::this_thread::yield();
    ++shared;
  });
  std::printf("%d of 2\n", shared);
}
