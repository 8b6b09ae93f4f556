// A progress bar on stderr for jobs that take over two seconds, when stderr is a terminal.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

namespace heddle::cli {

/// Draws from its own thread while it lives, and wipes its line when it goes.
class Progress {
 public:
  explicit Progress(const std::string& label);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// A new stage, whose fraction is not known yet: a spinner until the first set().
  void stage(const std::string& label);
  /// Wipes the line and draws no more.
  void finish();
  /// From any thread.
  void set(double fraction) { fraction_.store(fraction, std::memory_order_relaxed); }

 private:
  void draw_until_done();
  void draw();
  bool worth_drawing() const;

  using Clock = std::chrono::steady_clock;
  Clock::time_point start_ = Clock::now();  // of the stage
  std::string label_;
  std::atomic<double> fraction_{-1};  // below zero: not known
  int frame_ = 0;
  bool drawn_ = false, done_ = false;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::thread painter_;  // runs only when stderr is a terminal
};

}  // namespace heddle::cli
