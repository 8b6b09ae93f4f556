// Peaks count the work that is done, whatever its speed: no test depends on a time.
#include <gmock/gmock.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

#include "heddle/error.h"
#include "peaks/amx_peak.h"
#include "peaks/fma_peak.h"
#include "peaks/plain_read.h"
#include "peaks/thread_rate.h"

namespace heddle::peaks {
namespace {

using Clock = std::chrono::steady_clock;

TEST(ThreadRate, EachThreadWorksAndItsWorkCounts) {
  for (const int threads : {1, 2, 5}) {
    std::mutex mutex;
    std::set<std::thread::id> seen;
    std::int64_t calls = 0;
    const auto begin = Clock::now();
    const double rate = rate_on_threads(threads, 5e-3, [&] {
      const std::lock_guard lock(mutex);
      seen.insert(std::this_thread::get_id());
      ++calls;
      return 2.0;
    });
    const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    EXPECT_EQ(std::ssize(seen), threads);
    EXPECT_TRUE(seen.contains(std::this_thread::get_id()));
    // They worked for 5 ms at least, and for no longer than the whole call took.
    EXPECT_LE(rate, 2.0 * static_cast<double>(calls) / 5e-3 * 1.0001);
    EXPECT_GE(rate, 2.0 * static_cast<double>(calls) / seconds * 0.9999);
  }
}

TEST(ThreadRate, WorkIsDoneOnceHoweverLongItTakes) {
  std::atomic<int> calls = 0;
  rate_on_threads(3, 1e-9, [&] {
    ++calls;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return 1.0;
  });
  EXPECT_EQ(calls, 3);
}

TEST(ThreadRate, OthersLeaveIfTheCallersWorkThrows) {
  const auto caller = std::this_thread::get_id();
  const auto work = [&] {
    if (std::this_thread::get_id() == caller) throw std::runtime_error("broken");
    return 1.0;
  };
  EXPECT_THROW(rate_on_threads(3, 1e-3, work), std::runtime_error);
}

TEST(Peaks, MultiplyAddsAreCounted) {
  EXPECT_GT(fma_peak_gflops(0.1), 0);
  EXPECT_GT(fma_peak_gflops(3, 0.1), 0);
}

TEST(Peaks, AmxIsRefusedWhereNothingMultipliesWithIt) {
  if (has_amx()) {
    EXPECT_GT(amx_peak_gflops(3, 0.1), 0);
  } else {
    EXPECT_THROW(amx_peak_gflops(1, 0.1), Error);
  }
}

TEST(PlainRead, ReadsEachByte) {
  constexpr std::size_t kSlice = std::size_t{1} << 18;
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{511}, std::size_t{512}, kSlice, 2 * kSlice + 517}) {
    // Vectors of their own length: ASan watches the end.
    std::vector<std::byte> first(bytes), second(bytes / 2 + 1);
    for (const int threads : {1, 3}) {
      EXPECT_EQ(plain_read(threads, first, second), std::byte{0});
      for (auto* part : {&first, &second}) {
        for (const std::size_t at : {std::size_t{0}, part->size() / 2, part->size() - 1}) {
          (*part)[at] = std::byte{16};
          EXPECT_EQ(plain_read(threads, first, second), std::byte{16}) << bytes << " " << at;
          (*part)[at] = std::byte{0};
        }
      }
    }
  }
  EXPECT_EQ(plain_read(2, {}), std::byte{0});
}

}  // namespace
}  // namespace heddle::peaks
