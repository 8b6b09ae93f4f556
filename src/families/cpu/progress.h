// Tells the caller of a long run how far it is: from one thread at a time, not too often, never backwards.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <mutex>

namespace heddle::cpu {

class Progress {
 public:
  /// Part `part` of `parts` equal ones, with `tasks` tasks.
  Progress(const std::function<void(double)>& report, std::int64_t tasks, std::int64_t part, std::int64_t parts)
      : report_(report), tasks_(tasks), part_(part), parts_(parts) {}

  /// Counts a task that ended. Reports if no other thread does and the last report is some time ago.
  void add_one() {
    const std::int64_t done = done_.fetch_add(1, std::memory_order_relaxed) + 1;
    if (!report_) return;
    const std::unique_lock lock(mutex_, std::try_to_lock);
    const auto now = std::chrono::steady_clock::now();
    if (!lock || done <= reported_ || now - last_ < kInterval) return;
    last_ = now;
    reported_ = done;
    report_((static_cast<double>(part_) + static_cast<double>(done) / static_cast<double>(tasks_)) /
            static_cast<double>(parts_));
  }

 private:
  static constexpr std::chrono::milliseconds kInterval{50};

  const std::function<void(double)>& report_;
  std::int64_t tasks_, part_, parts_;
  std::atomic<std::int64_t> done_{0};
  std::mutex mutex_;
  std::int64_t reported_ = 0;
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

}  // namespace heddle::cpu
