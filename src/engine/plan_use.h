// Users of a plan at one time: any number of runs, or one update. Nobody waits.
#pragma once

#include <atomic>
#include <cstdint>

#include "heddle/error.h"

namespace heddle::engine {

class PlanUse {
 public:
  /// While it lives, updates are refused. Throws Error(invalid_argument) during an update.
  class Run {
   public:
    explicit Run(PlanUse& use) : runs_(use.runs_) {
      if (runs_.fetch_add(1, std::memory_order_acquire) >= 0) return;
      runs_.fetch_sub(1, std::memory_order_relaxed);
      throw Error(ErrorCode::invalid_argument, "the plan is being updated; runs before or after that are accepted");
    }
    ~Run() { runs_.fetch_sub(1, std::memory_order_release); }
    Run(const Run&) = delete;
    Run& operator=(const Run&) = delete;

   private:
    std::atomic<std::int64_t>& runs_;
  };

  /// While it lives, runs and other updates are refused. Throws Error(invalid_argument) during a run or an update.
  class Update {
   public:
    explicit Update(PlanUse& use) : runs_(use.runs_) {
      std::int64_t none = 0;
      if (runs_.compare_exchange_strong(none, kUpdating, std::memory_order_acquire)) return;
      throw Error(ErrorCode::invalid_argument,
                  "the plan is being run or updated; an update before or after that is accepted");
    }
    ~Update() { runs_.fetch_sub(kUpdating, std::memory_order_release); }
    Update(const Update&) = delete;
    Update& operator=(const Update&) = delete;

   private:
    std::atomic<std::int64_t>& runs_;
  };

 private:
  static constexpr std::int64_t kUpdating = std::int64_t{-1} << 32;  // below any number of runs that are refused

  std::atomic<std::int64_t> runs_ = 0;
};

}  // namespace heddle::engine
