// Events on their way to listeners and logs: heddle/events.h.
#pragma once

#include <atomic>
#include <cstdint>
#include <string_view>

#include "base/json_text.h"

namespace heddle::base {

enum class Hearing : std::uint8_t { unknown, nobody, somebody };
/// Unknown until HEDDLE_LOG was read, once a process.
extern std::atomic<Hearing> hearing;
/// Reads HEDDLE_LOG. Throws io if its file cannot be opened.
bool find_hearers();

/// Whether events are heard at all. One relaxed load, except for the first call, which throws as find_hearers() does.
inline bool hears_events() {
  const Hearing known = hearing.load(std::memory_order_relaxed);
  return known == Hearing::unknown ? find_hearers() : known == Hearing::somebody;
}

/// Hands on an event of these fields. Nothing that fails on the way is thrown.
void report(std::string_view event, const JsonObject& fields) noexcept;

/// Counts of all builders of kernels.
struct KernelCounters {
  std::atomic<std::int64_t> compiled{0}, from_memory{0}, from_disk{0}, from_archive{0}, rejected{0};
};
KernelCounters& kernel_counters();

}  // namespace heddle::base
