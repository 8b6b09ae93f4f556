// Checks each kernel in the table of the portable backward against the reference on a small problem, then times it,
// full and causal.
//
//   bench_backward_mma_variants [--dim D,...] [--lengths N,...] [--dtype bf16|f16|f32|f64] [--kernel I] [--times N]
//                               [--tf32 0|1] [--device I]
//
// Prints milliseconds and TFLOP/s of all kernels of a run (5 products; causal counts half), or why kernels cannot run.
// Exits 1 if gradients fail the criterion of heddle/check.h.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "backend/cuda/driver/driver.h"
#include "backward_runs.h"
#include "base/rejected.h"
#include "families/backward_mma/backward_mma.h"
#include "gpu_timer.h"

namespace heddle::bench {
namespace {

constexpr std::int64_t kTokens = 16384, kColumns = 2048;

/// The kernels at a place of the planner's list, ready to run. Throws std::out_of_range past its end, and
/// base::Rejected.
struct Runner {
  Runner(const Memory& memory, std::size_t number)
      : runs(memory.options, memory.tensors(), [&](std::vector<plan::Choice>& choices) -> const plan::Choice& {
          name = backward_mma::name_of(choices.at(number).plan.part<plan::BackwardMmaKernels>());
          return choices[number];
        }) {}

  std::string name;
  BackwardRuns runs;
};

struct Arguments {
  std::vector<std::int64_t> dims = {64, 128, 256}, lengths = {512, 2048, 8192, 16384};
  int kernel = -1;  // all
  int times = 4, device = 0;
  DType dtype = DType::bf16;
  bool tf32 = false;
};

Arguments parse(int count, char** words) {
  Arguments arguments;
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
double seconds_of(const BackwardRuns& runs, int times, GpuTimer& timer) {
  std::vector<double> rounds;
  timer.seconds(1, [&] { runs(timer.stream()); });
  for (int round = 0; round < 5; ++round) rounds.push_back(timer.seconds(times, [&] { runs(timer.stream()); }));
  std::ranges::sort(rounds);
  return rounds[2];
}

/// True where the criterion is met, or the kernels do not run.
bool check_and_time(std::int64_t dim, std::size_t kernel, const Arguments& arguments, const Device& gpu,
                    GpuTimer& timer) {
  const Memory small(1, 2, 400, {dim, dim}, true, gpu, arguments.dtype, arguments.tf32);
  const Runner checked(small, kernel);
  timer.seconds(1, [&] { checked.runs(timer.stream()); });
  const GradientReport report = check_backward(checked.runs.tensors(), small.options);
  fmt::print("D {} {}: {}\n", dim, checked.name, report.passed ? "within the criterion" : "WRONG\n" + report.text());
  if (!report.passed) return false;
  const std::int64_t heads = kColumns / dim;
  for (const bool causal : {false, true}) {
    for (const std::int64_t length : arguments.lengths) {
      const Memory memory(kTokens / length, heads, length, {dim, dim}, causal, gpu, arguments.dtype, arguments.tf32);
      const double seconds = seconds_of(Runner(memory, kernel).runs, arguments.times, timer);
      const double flops = static_cast<double>(10 * kTokens * length * heads * dim) * (causal ? 0.5 : 1);
      fmt::print("  {} {}: {:.3f} ms {:.1f}\n", causal ? "causal" : "full", length, 1e3 * seconds,
                 1e-12 * flops / seconds);
      std::fflush(stdout);
    }
  }
  return true;
}

int run(const Arguments& arguments) {
  if (const std::string reason = cuda::driver_missing(); !reason.empty()) {
    fmt::print(stderr, "no CUDA device: {}\n", reason);
    return 2;
  }
  const Device gpu{DeviceKind::cuda, arguments.device};
  GpuTimer timer(arguments.device);
  bool right = true;
  for (const std::int64_t dim : arguments.dims) {
    constexpr std::size_t kMost = 16;  // more than the table has for any head dim
    for (std::size_t i = 0; i < kMost; ++i) {
      if (arguments.kernel >= 0 && static_cast<std::size_t>(arguments.kernel) != i) continue;
      try {
        right = check_and_time(dim, i, arguments, gpu, timer) && right;
      } catch (const base::Rejected& rejected) {
        fmt::print("D {} kernel {}: {}\n", dim, i, std::string(rejected.what()).substr(0, 120));
      } catch (const std::out_of_range&) {
        break;  // past the end of the table
      }
    }
  }
  return right ? 0 : 1;
}

}  // namespace
}  // namespace heddle::bench

int main(int count, char** words) {
  ::setenv("HEDDLE_FAMILY", "backward_mma", 1);  // unproven families are for who asks for them
  return heddle::bench::run(heddle::bench::parse(count, words));
}
