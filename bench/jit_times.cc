// Times a kernel's preparation before its first launch, each figure from a process of its own: cold (NVRTC's load,
// compilation, the write to disk), from the disk cache (NVRTC's load, for its version stands in the key, and the read),
// from memory.
//
//   bench_jit_times [FILE.cu ARCHITECTURE [OPTION...]]    a source, such as HEDDLE_DUMP leaves; else the planner's
//                                                         kernels
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "backend/cuda/jit/cuda_jit.h"
#include "expr/simplify.h"
#include "families/forward_sm90/forward_sm90.h"
#include "families/forward_sm90/forward_sm90_costs.h"
#include "heddle/mods.h"

namespace heddle::cuda::jit {
namespace {

constexpr int kRounds = 5;

struct Times {
  double load, build, processor, again;  // ms; processor: of build(), whatever else the machine does
};

double milliseconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
}

double processor_milliseconds() {
  timespec time{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) * 1e3 + static_cast<double>(time.tv_nsec) / 1e6;
}

Times measure(const Source& source) {
  Times times{};
  auto begin = std::chrono::steady_clock::now();
  key_of(source);
  times.load = milliseconds_since(begin);
  const double processor = processor_milliseconds();
  begin = std::chrono::steady_clock::now();
  build(source);
  times.build = milliseconds_since(begin);
  times.processor = processor_milliseconds() - processor;
  begin = std::chrono::steady_clock::now();
  build(source);
  times.again = milliseconds_since(begin);
  return times;
}

/// measure(), in a process that has done nothing yet.
Times measure_afresh(const Source& source) {
  std::array<int, 2> pipe{};
  if (::pipe(pipe.data()) != 0) throw Error(ErrorCode::io, "no pipe");
  const pid_t child = ::fork();
  if (child == 0) {
    try {
      const Times times = measure(source);
      ::_exit(::write(pipe[1], &times, sizeof times) == sizeof times ? 0 : 1);
    } catch (const std::exception& error) {
      fmt::print(stderr, "{}\n", error.what());
      ::_exit(1);
    }
  }
  ::close(pipe[1]);
  Times times{};
  const bool complete = ::read(pipe[0], &times, sizeof times) == sizeof times;
  ::close(pipe[0]);
  ::waitpid(child, nullptr, 0);
  if (!complete) throw Error(ErrorCode::compile, "the kernel was not built");
  return times;
}

void print(const char* what, std::vector<Times> rounds) {
  const auto middle = [&](double Times::*part) {
    std::sort(rounds.begin(), rounds.end(), [&](const Times& a, const Times& b) { return a.*part < b.*part; });
    return fmt::format("{:8.2f} ({:.2f} to {:.2f})", rounds[rounds.size() / 2].*part, rounds.front().*part,
                       rounds.back().*part);
  };
  fmt::print("{}\n  NVRTC's load    {}\n  build()         {}\n  its processor's {}\n  from memory     {}\n", what,
             middle(&Times::load), middle(&Times::build), middle(&Times::processor), middle(&Times::again));
}

Source source_of_file(const std::vector<std::string>& arguments) {
  std::ifstream file(arguments[0], std::ios::binary);
  if (!file) throw Error(ErrorCode::io, fmt::format("cannot read {}", arguments[0]));
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  if (arguments.size() < 2) throw Error(ErrorCode::invalid_argument, "FILE.cu needs an architecture: sm_90a, say");
  return {.name = std::filesystem::path(arguments[0]).stem(),
          .text = text,
          .architecture = arguments[1],
          .options = {arguments.begin() + 2, arguments.end()}};
}

/// The kernels that are chosen of their own, with a causal mask.
std::vector<Source> planned_sources() {
  std::vector<Source> sources;
  plan::KernelMods mods;
  mods.mask = expr::simplify(mods::causal(), expr::Precision::f32);
  for (const plan::ForwardSm90Kernel& kernel : plan::kForwardSm90Kernels) {
    shared::ForwardSm90Config config = plan::config_with(kernel.config(), mods);
    config.lse = true;
    if (!kernel.spare) sources.push_back(forward_sm90::source(config, mods, device_text::layout_of(mods.all())));
  }
  return sources;
}

void measure_all(const Source& source) {
  std::string folder = (std::filesystem::temp_directory_path() / "heddle-jit-times-XXXXXX").string();
  if (::mkdtemp(folder.data()) == nullptr) throw Error(ErrorCode::io, fmt::format("cannot make {}", folder));
  ::setenv("HEDDLE_CACHE_DIR", folder.c_str(), 1);
  std::vector<Times> cold, disk;
  for (int round = 0; round < kRounds; ++round) {
    for (const auto& entry : std::filesystem::directory_iterator(folder)) std::filesystem::remove(entry.path());
    cold.push_back(measure_afresh(source));
    disk.push_back(measure_afresh(source));
  }
  std::filesystem::remove_all(folder);
  fmt::print("{}, milliseconds: the middle of {} (least to most)\n", source.name, kRounds);
  print("cold", cold);
  print("from disk", disk);
}

void run(const std::vector<std::string>& arguments) {
  if (!arguments.empty()) return measure_all(source_of_file(arguments));
  for (const Source& source : planned_sources()) measure_all(source);
}

}  // namespace
}  // namespace heddle::cuda::jit

int main(int count, char** arguments) {
  try {
    heddle::cuda::jit::run({arguments + 1, arguments + count});
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}
