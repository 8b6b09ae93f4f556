// ONE_THREAD keeps its promise: a thread of the standard library or of oneTBB ends the program.
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "base/parallel.h"

namespace heddle {
namespace {

TEST(OneThread, StandardThreadsEndTheProgram) {
  EXPECT_DEATH(std::thread([] {}).join(), "ONE_THREAD");
}

TEST(OneThread, WorkersOfTheLibraryEndTheProgram) {
  if (base::available_cores() == 1) GTEST_SKIP() << "the only core has no workers beside it";
  const auto rest = [](int, std::int64_t) { std::this_thread::sleep_for(std::chrono::milliseconds(10)); };
  EXPECT_DEATH(base::parallel_tasks(2, 100, rest), "ONE_THREAD");
}

}  // namespace
}  // namespace heddle
