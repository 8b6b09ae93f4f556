// Numbers that threads count up or down together, in memory that is used again.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace heddle::base {

class Counters {
 public:
  /// `count` zeros, for one thread. Allocates if there were never so many.
  void clear(std::size_t count) {
    if (count > room_) {
      counters_ = std::make_unique<std::atomic<std::int32_t>[]>(count);
      room_ = count;
    }
    for (std::size_t i = 0; i < count; ++i) counters_[i].store(0, std::memory_order_relaxed);
  }
  std::atomic<std::int32_t>& operator[](std::size_t index) { return counters_[index]; }
  const std::atomic<std::int32_t>& operator[](std::size_t index) const { return counters_[index]; }

 private:
  std::unique_ptr<std::atomic<std::int32_t>[]> counters_;
  std::size_t room_ = 0;
};

}  // namespace heddle::base
