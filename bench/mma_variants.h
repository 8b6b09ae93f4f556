// A frame for programs that check and time each kernel in a table of the portable families. `Runner` has a
// constructor from a Memory, which outlives it, and the number of a kernel on the planner's list, which throws
// std::out_of_range past the list's end, and base::Rejected; operator()(stream), which runs it; check(memory), a report
// of the tensors of that run; `name`; and kFlops, those of a pair of a query and a key for each column.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "backend/cuda/driver/driver.h"
#include "backward_runs.h"
#include "base/rejected.h"
#include "gpu_timer.h"

namespace heddle::bench {

struct VariantArguments {
  std::vector<std::int64_t> dims = {64, 128, 256, 512}, lengths = {512, 2048, 8192, 16384};
  int kernel = -1;  // all
  int times = 4, device = 0;
  DType dtype = DType::bf16;
  bool tf32 = false;
};

inline VariantArguments parse_variants(int count, char** words) {
  VariantArguments arguments;
  for (int i = 1; i + 1 < count; i += 2) {
    const std::string_view word = words[i];
    if (word == "--dim") arguments.dims = numbers_of(words[i + 1]);
    if (word == "--lengths") arguments.lengths = numbers_of(words[i + 1]);
    if (word == "--dtype") arguments.dtype = parse_dtype(words[i + 1]);
    if (word == "--tf32") arguments.tf32 = words[i + 1] == std::string_view("1");
    if (word == "--kernel") arguments.kernel = std::atoi(words[i + 1]);
    if (word == "--times") arguments.times = std::atoi(words[i + 1]);
    if (word == "--device") arguments.device = std::atoi(words[i + 1]);
  }
  return arguments;
}

/// The median of five rounds, after one that is no sample.
template <class Runner>
double seconds_of(const Runner& runner, int times, GpuTimer& timer) {
  std::vector<double> rounds;
  timer.seconds(1, [&] { runner(timer.stream()); });
  for (int round = 0; round < 5; ++round) rounds.push_back(timer.seconds(times, [&] { runner(timer.stream()); }));
  std::ranges::sort(rounds);
  return rounds[2];
}

/// True where the criterion is met.
template <class Runner>
bool check_and_time(std::int64_t dim, std::size_t kernel, const VariantArguments& arguments, GpuTimer& timer) {
  constexpr std::int64_t kTokens = 16384, kColumns = 2048;
  const Device gpu{DeviceKind::cuda, arguments.device};
  const auto memory_of = [&](std::int64_t batch, std::int64_t heads, std::int64_t length, bool causal) {
    return Memory(batch, heads, length, {dim, dim}, causal, gpu, arguments.dtype, arguments.tf32);
  };
  const Memory small = memory_of(1, 2, 400, true);
  const Runner checked(small, kernel);
  timer.seconds(1, [&] { checked(timer.stream()); });
  const auto report = checked.check(small);
  fmt::print("D {} {}: {}\n", dim, checked.name, report.passed ? "within the criterion" : "WRONG\n" + report.text());
  if (!report.passed) return false;
  const std::int64_t heads = kColumns / dim;
  for (const bool causal : {false, true}) {
    for (const std::int64_t length : arguments.lengths) {
      const Memory memory = memory_of(kTokens / length, heads, length, causal);
      const double seconds = seconds_of(Runner(memory, kernel), arguments.times, timer);
      const double flops = static_cast<double>(Runner::kFlops * kTokens * length * heads * dim) * (causal ? 0.5 : 1);
      fmt::print("  {} {}: {:.3f} ms {:.1f}\n", causal ? "causal" : "full", length, 1e3 * seconds,
                 1e-12 * flops / seconds);
      std::fflush(stdout);
    }
  }
  return true;
}

/// The exit code of the program: 1 if a kernel fails the criterion, 2 without a GPU. A kernel that the compiler or the
/// chip rejects is printed and passed over.
template <class Runner>
int run_variants(const VariantArguments& arguments) {
  if (const std::string reason = cuda::driver_missing(); !reason.empty()) {
    fmt::print(stderr, "no CUDA device: {}\n", reason);
    return 2;
  }
  GpuTimer timer(arguments.device);
  bool right = true;
  for (const std::int64_t dim : arguments.dims) {
    constexpr std::size_t kMost = 16;  // more than the table has for any head dim
    for (std::size_t i = 0; i < kMost; ++i) {
      if (arguments.kernel >= 0 && static_cast<std::size_t>(arguments.kernel) != i) continue;
      try {
        right = check_and_time<Runner>(dim, i, arguments, timer) && right;
      } catch (const base::Rejected& rejected) {
        fmt::print("D {} kernel {}: {}\n", dim, i, std::string(rejected.what()).substr(0, 120));
      } catch (const std::out_of_range&) {
        break;  // past the end of the table
      }
    }
  }
  return right ? 0 : 1;
}

}  // namespace heddle::bench
