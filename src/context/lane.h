// Exchanges one after the other, beside attention.
#pragma once

#include <array>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

#include "backend/device.h"

namespace heddle::context {

/// Runs the exchanges of one call in the order in which they are started, so that all ranks take part in them in one
/// order. Three ways:
/// - at once, on the stream of attention: nothing runs beside;
/// - on a side stream of a GPU;
/// - in a thread of its own, on a CPU.
class Lane {
 public:
  static constexpr int kMarks = 5;
  using Exchange = std::function<void(void* stream)>;

  /// At once. `stream`: attention's.
  explicit Lane(void* stream) : stream_(stream) {}
  /// `side`: with kMarks marks; null: on a CPU.
  Lane(void* stream, backend::SideStream* side);
  /// After an error: on a CPU an exchange that has begun is waited for, and later ones are left out; on a GPU
  /// attention's stream waits for those that were started.
  ~Lane();
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  /// Starts an exchange behind the earlier ones, and behind what attention's stream has now. The mark is then of it.
  void start(int mark, Exchange exchange);
  /// Later work of attention's stream, on the CPU of this thread, comes after the mark's last exchange.
  /// Throws what an exchange up to it threw.
  void wait_for(int mark);

 private:
  void work();

  void* stream_ = nullptr;
  backend::SideStream* side_ = nullptr;

  struct Started {
    int number = 0;  // from 1 on
    Exchange exchange;
  };
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Started> started_;
  std::array<int, kMarks> last_{};  // number of each mark's last exchange; 0: none
  int count_ = 0, done_ = 0;
  bool ends_ = false;
  std::exception_ptr error_;
  std::thread worker_;
};

}  // namespace heddle::context
