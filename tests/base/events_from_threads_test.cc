#include <gtest/gtest.h>

#include <atomic>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "base/report.h"
#include "heddle/events.h"

namespace heddle {
namespace {

TEST(EventsFromThreads, AListenerMayBeSetWhileOthersReport) {
  std::atomic<int> heard = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 200; ++i) {
        set_event_listener([&](const std::string&) {
          ++heard;
          static_cast<void>(base::hears_events());  // may call the library
        });
        base::report("plan", {});
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(heard, 800);
  set_event_listener({});
}

}  // namespace
}  // namespace heddle
