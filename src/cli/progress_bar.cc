#include "progress_bar.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <system_error>

namespace heddle::cli {
namespace {

using namespace std::chrono_literals;

constexpr auto kFrame = 100ms;
constexpr double kLong = 2.0;       // seconds from which a stage gets a bar
constexpr double kForesight = 0.5;  // seconds after which a known fraction is trusted to foretell the rest
constexpr int kWidth = 30;
constexpr const char* kWipe = "\r\033[K";

void write_stderr(const std::string& text) {
  std::fputs(text.c_str(), stderr);
  std::fflush(stderr);
}

}  // namespace

Progress::Progress(const std::string& label) : label_(label) {
  if (isatty(STDERR_FILENO) != 1) return;
  try {
    painter_ = std::thread([this] { draw_until_done(); });
  } catch (const std::system_error&) {  // no thread to be had: the work goes on without a bar
  }
}

Progress::~Progress() { finish(); }

void Progress::finish() {
  {
    const std::lock_guard lock(mutex_);
    done_ = true;
  }
  wake_.notify_all();
  if (painter_.joinable()) painter_.join();
}

void Progress::stage(const std::string& label) {
  const std::lock_guard lock(mutex_);
  label_ = label;
  set(-1);
  start_ = Clock::now();
}

void Progress::draw_until_done() {
  std::unique_lock lock(mutex_);
  while (!wake_.wait_for(lock, kFrame, [this] { return done_; })) {
    if (drawn_ || worth_drawing()) draw();
  }
  if (drawn_) write_stderr(kWipe);
}

bool Progress::worth_drawing() const {
  const double seconds = std::chrono::duration<double>(Clock::now() - start_).count();
  const double fraction = fraction_.load(std::memory_order_relaxed);
  return seconds > kLong || (seconds > kForesight && fraction > 0 && seconds > kLong * fraction);
}

void Progress::draw() {
  drawn_ = true;
  const double seconds = std::chrono::duration<double>(Clock::now() - start_).count();
  const double fraction = std::min(fraction_.load(std::memory_order_relaxed), 1.0);
  if (fraction < 0) {
    constexpr std::string_view kSpinner = "|/-\\";
    const char frame = kSpinner[static_cast<std::size_t>(frame_++) % kSpinner.size()];
    write_stderr(fmt::format("{}{} {}  {:.0f} s", kWipe, label_, frame, seconds));
    return;
  }
  const int filled = static_cast<int>(fraction * kWidth);
  write_stderr(fmt::format("{}{} [{:=<{}}{: <{}}] {:3.0f} %  {:.0f} s", kWipe, label_, "", filled, "", kWidth - filled,
                           100 * fraction, seconds));
}

}  // namespace heddle::cli
