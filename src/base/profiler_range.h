// Ranges on the timeline of a profiler that listens to NVTX: Nsight Systems and its kind. No library is linked: a
// profiler names its own by NVTX_INJECTION64_PATH, which is opened once.
#pragma once

#include <atomic>
#include <cstdint>

namespace heddle::base {

enum class Profiler : std::uint8_t { unknown, none, listens };
extern std::atomic<Profiler> profiler;
/// Opens the profiler's library if there is one. Whether it listens to ranges.
bool find_profiler() noexcept;
void push_range(const char* name) noexcept;
void pop_range() noexcept;

/// From here to the end of its scope, on this thread. Without a profiler one relaxed load. `name` is copied.
class ProfilerRange {
 public:
  explicit ProfilerRange(const char* name) noexcept {
    const Profiler known = profiler.load(std::memory_order_relaxed);
    is_open_ = known == Profiler::unknown ? find_profiler() : known == Profiler::listens;
    if (is_open_) push_range(name);
  }
  ~ProfilerRange() {
    if (is_open_) pop_range();
  }
  ProfilerRange(const ProfilerRange&) = delete;
  ProfilerRange& operator=(const ProfilerRange&) = delete;

 private:
  bool is_open_ = false;
};

}  // namespace heddle::base
