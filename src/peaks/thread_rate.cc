#include "peaks/thread_rate.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <numeric>
#include <thread>
#include <vector>

namespace heddle::peaks {
namespace {

using Clock = std::chrono::steady_clock;

struct Share {
  Clock::time_point begin, end;
  double done = 0;
};

void repeat(double seconds, const std::function<double()>& work, Share& share) {
  const auto limit = std::chrono::duration<double>(seconds);
  share.begin = Clock::now();
  do {
    share.done += work();
    share.end = Clock::now();
  } while (share.end - share.begin < limit);
}

/// Threads that wait for each other. If one could not be started, those that wait leave without work.
class Crew {
 public:
  Crew(int threads, double seconds, const std::function<double()>& work)
      : seconds_(seconds), work_(work), shares_(static_cast<std::size_t>(threads)) {}
  ~Crew() {
    state_ = State::over;
    for (std::thread& thread : others_) thread.join();
  }
  Crew(const Crew&) = delete;
  Crew& operator=(const Crew&) = delete;

  double rate() {
    for (std::size_t i = 1; i < shares_.size(); ++i) others_.emplace_back([this, i] { wait_and_work(shares_[i]); });
    while (arrived_ < std::ssize(others_)) std::this_thread::yield();
    state_ = State::work;
    repeat(seconds_, work_, shares_[0]);
    for (std::thread& thread : others_) thread.join();
    others_.clear();
    const auto begin = std::ranges::min(shares_, {}, &Share::begin).begin;
    const auto end = std::ranges::max(shares_, {}, &Share::end).end;
    const double done = std::accumulate(shares_.begin(), shares_.end(), 0.0,
                                        [](double sum, const Share& share) { return sum + share.done; });
    return done / std::chrono::duration<double>(end - begin).count();
  }

 private:
  enum class State { wait, work, over };

  void wait_and_work(Share& share) {
    ++arrived_;
    while (state_ == State::wait) std::this_thread::yield();
    if (state_ == State::work) repeat(seconds_, work_, share);
  }

  const double seconds_;
  const std::function<double()>& work_;
  std::vector<Share> shares_;
  std::vector<std::thread> others_;
  std::atomic<std::ptrdiff_t> arrived_ = 0;
  std::atomic<State> state_ = State::wait;
};

}  // namespace

double rate_on_threads(int threads, double seconds, const std::function<double()>& work) {
  return Crew(threads, seconds, work).rate();
}

}  // namespace heddle::peaks
