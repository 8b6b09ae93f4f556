#include "cpu_windows.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <ctime>
#include <random>
#include <vector>

#include "peaks/fma_peak.h"

namespace heddle::bench {
namespace {

using Clock = std::chrono::steady_clock;
constexpr double kProbeMilliseconds = 2;

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

CpuArguments cpu_arguments(int count, char** arguments) {
  CpuArguments asked;
  for (int i = 1; i < count; ++i) {
    const std::string argument = arguments[i];
    if (argument == "--threads" && i + 1 < count) {
      asked.threads = std::atoi(arguments[++i]);
    } else if (argument == "--seconds" && i + 1 < count) {
      asked.seconds = std::atof(arguments[++i]);
    } else {
      asked.filter = argument;
    }
  }
  return asked;
}

void print_head(int threads) {
  fmt::print("{} threads\n{:<24} {:>8} {:>8} {:>7} {:>8} {}\n", threads, "case", "GFLOP/s", "probe", "ratio", "wall",
             "windows");
}

void print_line(const std::string& name, const CpuFigures& figures) {
  fmt::print("{:<24} {:8.1f} {:8.1f} {:7.3f} {:8.1f} {:5}/{}\n", name, figures.gflops, figures.probe, figures.ratio,
             figures.wall, figures.counted, figures.windows);
}

Tensor random_tensor(DType dtype, const Dims& shape, unsigned seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  Tensor x = Tensor::empty(DType::f32, shape);
  float* data = static_cast<float*>(x.data());
  for (std::int64_t i = 0; i < x.count(); ++i) data[i] = normal(generator);
  return x.to(dtype);
}

double process_seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

CpuFigures measure_windows(double flops, double seconds, const std::function<void()>& run) {
  struct Window {
    double gflops, wall, probe_low, probe_mean;
  };
  std::vector<Window> windows;
  double best_probe = 0;
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  double before = peaks::fma_peak_gflops(kProbeMilliseconds);
  while (Clock::now() < end || windows.size() < 5) {
    const auto begin = Clock::now();
    const double cpu_begin = process_seconds();
    int runs = 0;
    double elapsed = 0;
    do {
      run();
      ++runs;
      elapsed = std::chrono::duration<double>(Clock::now() - begin).count();
    } while (elapsed < 2e-3);
    const double cpu = process_seconds() - cpu_begin;
    const double after = peaks::fma_peak_gflops(kProbeMilliseconds);
    const double done = flops * runs * 1e-9;
    windows.push_back({done / cpu, done / elapsed, std::min(before, after), (before + after) / 2});
    best_probe = std::max({best_probe, before, after});
    before = after;
  }
  std::vector<double> gflops, wall, ratios;
  for (const Window& window : windows) {
    if (window.probe_low < 0.9 * best_probe) continue;
    gflops.push_back(window.gflops);
    wall.push_back(window.wall);
    ratios.push_back(window.gflops / window.probe_mean);
  }
  return {median(gflops), best_probe, median(ratios), median(wall), std::ssize(gflops), std::ssize(windows)};
}

}  // namespace heddle::bench
