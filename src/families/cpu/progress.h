// Tells the caller of a long run how far it is: from one thread at a time, not too often, never backwards.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>

namespace heddle::cpu {

class Progress {
 public:
  /// Part `part` of `parts` equal ones, with `tasks` tasks.
  Progress(const std::function<void(double)>& report, std::int64_t tasks, std::int64_t part, std::int64_t parts)
      : report_(report), tasks_(tasks), part_(part), parts_(parts) {}

  /// Counts a task that ended. Reports if no other thread does and the last report is some time ago. The thread that
  /// called reports whatever others did meanwhile: Python ends a call by its signals there alone.
  void add_one() {
    done_.fetch_add(1, std::memory_order_relaxed);
    if (!report_) return;
    const auto now = Clock::now();
    if (std::this_thread::get_id() == caller_) {
      if (now - last_of_caller_ < kInterval) return;
      last_of_caller_ = now;
      const std::lock_guard lock(mutex_);
      tell(now);
    } else if (const std::unique_lock lock(mutex_, std::try_to_lock); lock && now - last_ >= kInterval) {
      tell(now);
    }
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::milliseconds kInterval{50};

  /// Under the lock, so that no fraction is less than the one before.
  void tell(Clock::time_point now) {
    last_ = now;
    const std::int64_t done = done_.load(std::memory_order_relaxed);
    report_((static_cast<double>(part_) + static_cast<double>(done) / static_cast<double>(tasks_)) /
            static_cast<double>(parts_));
  }

  const std::function<void(double)>& report_;
  std::int64_t tasks_, part_, parts_;
  std::atomic<std::int64_t> done_{0};
  std::mutex mutex_;
  Clock::time_point last_ = Clock::now(), last_of_caller_ = last_;
  const std::thread::id caller_ = std::this_thread::get_id();
};

}  // namespace heddle::cpu
