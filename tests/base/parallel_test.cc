#include "base/parallel.h"

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <fstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace {

/// How many more threads may start; negative: any number.
std::atomic<int> threads_left{-1};

}  // namespace

/// In the C library's place, for oneTBB too.
extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*start)(void*),
                              void* argument) noexcept {
  int left = threads_left;
  while (left > 0 && !threads_left.compare_exchange_weak(left, left - 1)) {
  }
  if (left == 0) return EAGAIN;
  static const auto original = reinterpret_cast<decltype(&pthread_create)>(::dlsym(RTLD_NEXT, "pthread_create"));
  return original(thread, attributes, start, argument);
}

namespace heddle::base {
namespace {

TEST(ParallelTasks, EveryTaskRunsOnceOnAWorkerInRange) {
  for (const int threads : {0, 1, 2, 3, 8}) {
    for (const std::int64_t count : {0, 1, 2, 7, 1000}) {
      std::vector<std::atomic<int>> runs(static_cast<std::size_t>(count));
      std::atomic<int> bad_worker{0};
      const int workers = threads == 0 ? available_cores() : threads;
      parallel_tasks(threads, count, [&](int worker, std::int64_t task) {
        if (worker < 0 || worker >= workers) ++bad_worker;
        ++runs[static_cast<std::size_t>(task)];
      });
      EXPECT_EQ(bad_worker, 0);
      for (const auto& n : runs) ASSERT_EQ(n, 1) << threads << " threads, " << count << " tasks";
    }
  }
}

std::int64_t resident_bytes() {
  std::int64_t pages = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> pages >> resident;
  return resident * ::sysconf(_SC_PAGESIZE);
}

// An arena of oneTBB that its workers do not pass by stays for ever: 7 to 13 KB a call.
TEST(ParallelTasks, CallsInARowLeaveNoMemory) {
  const int threads = available_cores() + 1;
  std::atomic<std::int64_t> sum{0};
  const auto call = [&] {
    parallel_tasks(threads, threads, [&](int, std::int64_t task) {
      for (int i = 0; i < 1000; ++i) sum.fetch_add(task, std::memory_order_relaxed);
    });
  };
  for (int i = 0; i < 50; ++i) call();
  const std::int64_t before = resident_bytes();
  for (int i = 0; i < 1500; ++i) call();
  EXPECT_LT(resident_bytes() - before, std::int64_t{4} << 20);
}

TEST(ParallelTasks, AWorkerRunsOneTaskAtATime) {
  constexpr int kThreads = 4;
  std::atomic<bool> busy[kThreads] = {};
  std::atomic<int> clashes{0};
  parallel_tasks(kThreads, 200, [&](int worker, std::int64_t) {
    if (busy[worker].exchange(true)) ++clashes;
    std::this_thread::sleep_for(std::chrono::microseconds(20));
    busy[worker] = false;
  });
  EXPECT_EQ(clashes, 0);
}

/// Each task waits until all have begun, so fewer real threads than tasks would never get there.
void expect_side_by_side(int threads) {
  std::atomic<int> begun{0};
  std::atomic<bool> late{false};
  parallel_tasks(threads, threads, [&](int, std::int64_t) {
    ++begun;
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (begun < threads && !late) {
      if (std::chrono::steady_clock::now() > end) late = true;
      std::this_thread::yield();
    }
  });
  EXPECT_FALSE(late) << begun << " of " << threads;
}

TEST(ParallelTasks, MoreThreadsThanCoresRunSideBySide) {
  for (const int more : {2, 1, 5, 20}) expect_side_by_side(available_cores() + more);
}

TEST(ParallelTasks, CallsAtTheSameTimeShareThreads) {
  std::vector<std::jthread> callers;
  for (int caller = 0; caller < 6; ++caller) {
    callers.emplace_back([caller] {
      for (int i = 0; i < 50; ++i) {
        std::atomic<int> runs{0};
        parallel_tasks(2 + caller, 40, [&](int, std::int64_t) { ++runs; });
        EXPECT_EQ(runs, 40);
      }
    });
  }
}

TEST(ParallelTasks, OneThreadOrOneTaskRunsInOrderInTheCaller) {
  const auto caller = std::this_thread::get_id();
  std::vector<std::int64_t> order;
  parallel_tasks(1, 4, [&](int worker, std::int64_t task) {
    EXPECT_EQ(worker, 0);
    EXPECT_EQ(std::this_thread::get_id(), caller);
    order.push_back(task);
  });
  EXPECT_THAT(order, testing::ElementsAre(0, 1, 2, 3));
  parallel_tasks(8, 1, [&](int, std::int64_t) { EXPECT_EQ(std::this_thread::get_id(), caller); });
}

TEST(ParallelTasks, TheFirstExceptionStopsTheRestAndIsRethrown) {
  for (const int threads : {1, 2, 8}) {
    std::atomic<int> runs{0};
    try {
      parallel_tasks(threads, 100000, [&](int, std::int64_t task) {
        ++runs;
        if (task == 3) throw std::runtime_error("task 3 failed");
        std::this_thread::sleep_for(std::chrono::microseconds(10));
      });
      FAIL() << "nothing thrown";
    } catch (const std::runtime_error& e) {
      EXPECT_EQ(std::string(e.what()), "task 3 failed");
    }
    EXPECT_LT(runs, 50000);
  }
}

/// Every task once, and the exception of a task.
void expect_all_run(int threads) {
  std::vector<std::atomic<int>> runs(3000);
  parallel_tasks(threads, 3000, [&](int worker, std::int64_t task) {
    ASSERT_LT(worker, threads);
    ++runs[static_cast<std::size_t>(task)];
  });
  for (const auto& n : runs) ASSERT_EQ(n, 1);
  EXPECT_THROW(parallel_tasks(threads, 3000,
                              [&](int, std::int64_t task) {
                                if (task == 7) throw std::out_of_range("task 7");
                              }),
               std::out_of_range);
}

/// A process of its own: oneTBB keeps the threads that it has.
void run_with_few_threads(int most) {
  threads_left = most;
  for (const int threads : {8, 64}) expect_all_run(threads);
  threads_left = -1;
  for (const int threads : {2, 8, 100}) expect_all_run(threads);
  std::exit(testing::Test::HasFailure() ? 1 : 0);
}

TEST(ParallelTasksDeathTest, TheCallerDoesWhatNoThreadStartsFor) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  for (const int most : {0, 1, 2, 5}) {
    EXPECT_EXIT(run_with_few_threads(most), testing::ExitedWithCode(0), "") << most << " threads";
  }
}

TEST(ParallelTasks, Nests) {
  std::atomic<int> runs{0};
  parallel_tasks(3, 5, [&](int, std::int64_t) { parallel_tasks(3, 7, [&](int, std::int64_t) { ++runs; }); });
  EXPECT_EQ(runs, 35);
}

}  // namespace
}  // namespace heddle::base
