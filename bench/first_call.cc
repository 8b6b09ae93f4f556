// Times the first attention of a process that finds its kernel in an archive and has no compiler, each figure from a
// process of its own: the driver's start with the first memory on the GPU, then the call with the wait for it.
//
//   bench_first_call [GPU]    h100 (default), h200, ...: the GPU of this machine; a compiler makes the archive
//
// HEDDLE_CUDA_DRIVER=build/release/tests/backend/cuda/driver/libfake_cuda_driver.so leaves what is the library's own.
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "heddle/heddle.h"

namespace {

using Clock = std::chrono::steady_clock;

constexpr int kProcesses = 9;
constexpr const char* kCall =
    R"({"q": {"dtype": "bf16", "shape": [1, 16, 4096, 128]}, "k": {"dtype": "bf16", "shape": [1, 16, 4096, 128]}, )"
    R"("v": {"dtype": "bf16", "shape": [1, 16, 4096, 128]}, "lse": true, "options": {"mask_mod": "q_idx >= kv_idx"}})";

struct Times {
  double start = 0, first = 0, second = 0;  // milliseconds
  double processor = 0;                     // of the first call
};

Times measure() {
  using heddle::DType;
  constexpr heddle::Device kGpu{heddle::DeviceKind::cuda, 0};
  const heddle::Dims shape = {1, 16, 4096, 128};
  Clock::time_point last = Clock::now();
  const auto passed = [&] {  // since it was asked before, in milliseconds
    const Clock::time_point now = Clock::now();
    return std::chrono::duration<double, std::milli>(now - std::exchange(last, now)).count();
  };
  const auto filled = [&] { return heddle::Tensor::zeros(DType::bf16, shape).to(kGpu); };
  const heddle::Tensor q = filled(), k = filled(), v = filled(), o = filled();
  const heddle::Tensor lse = heddle::Tensor::zeros(DType::f32, {1, 16, 4096}).to(kGpu);
  heddle::AttentionOptions options;
  options.mask_mod = heddle::mods::causal();
  Times times;
  times.start = passed();
  const auto processor = [] { return 1e3 * static_cast<double>(std::clock()) / CLOCKS_PER_SEC; };
  const double before = processor();
  for (double Times::*call : {&Times::first, &Times::second}) {
    heddle::attention_into({.q = q, .k = k, .v = v, .o = o, .lse = lse.view()}, options);
    (void)lse.to(heddle::Device{});  // waits
    times.*call = passed();
    if (call == &Times::first) times.processor = processor() - before;
  }
  return times;
}

Times measure_afresh() {
  std::array<int, 2> pipe{};
  if (::pipe(pipe.data()) != 0) throw std::runtime_error("no pipe");
  const pid_t child = ::fork();
  if (child == 0) {
    try {
      const Times times = measure();
      ::_exit(::write(pipe[1], &times, sizeof times) == sizeof times ? 0 : 1);
    } catch (const std::exception& error) {
      fmt::print(stderr, "{}\n", error.what());
      ::_exit(1);
    }
  }
  ::close(pipe[1]);
  Times times;
  const bool complete = ::read(pipe[0], &times, sizeof times) == sizeof times;
  ::close(pipe[0]);
  ::waitpid(child, nullptr, 0);
  if (!complete) throw std::runtime_error("a process gave no times");
  return times;
}

void print(const char* what, std::vector<Times> all, double Times::*part) {
  std::ranges::sort(all, {}, part);
  fmt::print("{:<32}{:8.2f} ms ({:.2f} to {:.2f})\n", what, all[all.size() / 2].*part, all.front().*part,
             all.back().*part);
}

/// In a process of its own, which looks for a compiler.
bool write_archive(const std::string& path, const std::string& gpu) {
  const pid_t child = ::fork();
  if (child == 0) {
    try {
      heddle::write_archive(path, kCall, std::vector<std::string>{gpu});
      ::_exit(0);
    } catch (const std::exception& error) {
      fmt::print(stderr, "{}\n", error.what());
      ::_exit(1);
    }
  }
  int status = 1;
  ::waitpid(child, &status, 0);
  return status == 0;
}

}  // namespace

int main(int argc, char** argv) {
  std::string folder = (std::filesystem::temp_directory_path() / "heddle-first-call-XXXXXX").string();
  if (::mkdtemp(folder.data()) == nullptr) return 1;
  const std::string archive = folder + "/kernels.archive";
  ::setenv("HEDDLE_CACHE_DIR", (folder + "/cache").c_str(), 1);
  int result = 1;
  if (write_archive(archive, argc > 1 ? argv[1] : "h100")) {
    ::setenv("HEDDLE_ARCHIVE", archive.c_str(), 1);
    ::setenv("HEDDLE_NVRTC", "/nonexistent", 1);
    ::setenv("HEDDLE_CACHE_DIR", (folder + "/none").c_str(), 1);
    try {
      std::vector<Times> all;
      for (int i = 0; i < kProcesses; ++i) all.push_back(measure_afresh());
      print("driver's start, first memory", all, &Times::start);
      print("first call", all, &Times::first);
      print("its processor time", all, &Times::processor);
      print("second call", all, &Times::second);
      result = 0;
    } catch (const std::exception& error) {
      fmt::print(stderr, "{}\n", error.what());
    }
  }
  std::filesystem::remove_all(folder);
  return result;
}
