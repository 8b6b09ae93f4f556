#include "reliability/fast_clock.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cmath>

namespace heddle::test {
namespace {

struct Start {
  double of_day, monotonic;  // seconds of the world
};
Start start;
std::atomic<double> rate_now{0};  // 0: clocks are the world's

double seconds(const timespec& time) {
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

timespec time_of(double all) {
  const double whole = std::floor(all);
  return {.tv_sec = static_cast<time_t>(whole), .tv_nsec = static_cast<long>((all - whole) * 1e9)};
}

double world(clockid_t clock) {
  timespec time{};
  ::syscall(SYS_clock_gettime, clock, &time);
  return seconds(time);
}

/// The day's clock here, when the world's is at `then`.
double day_at(double then) {
  const double passed = (then - start.of_day) * rate_now;
  if (passed <= 0) return then;
  return start.of_day + passed - 3600 * kHoursBack * std::floor(passed / (3600 * kHoursBetweenSteps));
}

}  // namespace

void run_clock_faster(double rate) {
  start = {.of_day = world(CLOCK_REALTIME), .monotonic = world(CLOCK_MONOTONIC)};
  rate_now = rate;
}

double seconds_of_the_world() { return world(CLOCK_MONOTONIC); }

}  // namespace heddle::test

extern "C" {

int clock_gettime(clockid_t clock, timespec* time) noexcept {
  using namespace heddle::test;
  if (const long result = ::syscall(SYS_clock_gettime, clock, time); result != 0) return static_cast<int>(result);
  if (rate_now == 0) return 0;
  if (clock == CLOCK_REALTIME) *time = time_of(day_at(seconds(*time)));
  if (clock == CLOCK_MONOTONIC) *time = time_of(start.monotonic + (seconds(*time) - start.monotonic) * rate_now);
  return 0;
}

int fstatat(int folder, const char* path, struct stat* status, int flags) noexcept {
  using namespace heddle::test;
  const long result = ::syscall(SYS_newfstatat, folder, path, status, flags);
  if (result == 0 && rate_now != 0) status->st_mtim = time_of(day_at(seconds(status->st_mtim)));
  return static_cast<int>(result);
}

}  // extern "C"
