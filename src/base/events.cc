#include "heddle/events.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>
#include <mutex>
#include <utility>

#include "base/environment.h"
#include "base/report.h"
#include "base/uninterrupted.h"
#include "heddle/error.h"

namespace heddle {
namespace base {
namespace {

struct Hearers {
  std::mutex mutex;
  std::shared_ptr<const EventListener> listener;
  int log = -1;  // HEDDLE_LOG's file
  bool is_log_known = false;
};

/// Never destroyed: threads may still plan while the process ends.
Hearers& hearers() {
  static auto* all = new Hearers;
  return *all;
}

int opened_log() {
  const std::string name = value_of(Option::log);
  // Users set switches to 0 and 1 from habit, so neither names a file; ./1 does.
  if (name.empty() || name == "0") return -1;
  if (name == "-" || name == "1") return STDERR_FILENO;
  const int file = uninterrupted([&] { return ::open(name.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644); });
  if (file < 0) {
    throw Error(ErrorCode::io, fmt::format("HEDDLE_LOG is '{}', which cannot be opened to append to it: {}; a file, "
                                           "'-' or '1' (stderr) and '0' (none) are accepted",
                                           name, std::strerror(errno)));
  }
  return file;
}

/// Under the lock.
void tell_hearing(const Hearers& all) {
  hearing.store(all.log >= 0 || all.listener != nullptr ? Hearing::somebody : Hearing::nobody,
                std::memory_order_relaxed);
}

/// One write a line: lines of several processes that share a file stay whole.
void append(int file, const std::string& line) {
  std::size_t written = 0;
  while (written < line.size()) {
    const ssize_t count = uninterrupted([&] { return ::write(file, line.data() + written, line.size() - written); });
    if (count < 0) return;
    written += static_cast<std::size_t>(count);
  }
}

}  // namespace

std::atomic<Hearing> hearing{Hearing::unknown};

bool find_hearers() {
  Hearers& all = hearers();
  const std::lock_guard lock(all.mutex);
  if (!all.is_log_known) all.log = opened_log();
  all.is_log_known = true;
  tell_hearing(all);
  return hearing.load(std::memory_order_relaxed) == Hearing::somebody;
}

void report(std::string_view event, const JsonObject& fields) noexcept {
  try {
    using Seconds = std::chrono::duration<double>;
    const std::string line = JsonObject()
                                 .add("event", event)
                                 .add("time", Seconds(std::chrono::system_clock::now().time_since_epoch()).count())
                                 .add("process", ::getpid())
                                 .add_members(fields)
                                 .text();
    Hearers& all = hearers();
    std::shared_ptr<const EventListener> listener;
    int log = -1;
    {
      const std::lock_guard lock(all.mutex);
      listener = all.listener;
      log = all.log;
    }
    if (log >= 0) append(log, line + "\n");
    if (listener != nullptr) (*listener)(line);
  } catch (...) {  // an event is no reason for a call to fail
  }
}

KernelCounters& kernel_counters() {
  static KernelCounters counters;
  return counters;
}

}  // namespace base

void set_event_listener(EventListener listener) {
  base::Hearers& all = base::hearers();
  auto made = listener ? std::make_shared<const EventListener>(std::move(listener)) : nullptr;
  const std::lock_guard lock(all.mutex);
  all.listener.swap(made);
  if (all.is_log_known) {
    base::tell_hearing(all);
  } else {  // the next plan reads HEDDLE_LOG
    base::hearing.store(base::Hearing::unknown, std::memory_order_relaxed);
  }
}

KernelCounts kernel_counts() {
  const base::KernelCounters& counters = base::kernel_counters();
  return {counters.compiled, counters.from_memory, counters.from_disk, counters.from_archive, counters.rejected};
}

}  // namespace heddle
