// Checks each kernel in the table of the portable forward against the reference on a small problem, then times it, full
// and causal.
//
//   bench_forward_mma_variants [--dim D,...] [--lengths N,...] [--dtype bf16|f16|f32|f64] [--kernel I] [--times N]
//                              [--tf32 0|1] [--device I]
//
// Prints milliseconds and TFLOP/s of a run (causal counts half), or why a kernel cannot run. Exits 1 if o or lse fails
// the criterion of heddle/check.h.
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
#include "families/forward_mma/forward_mma.h"
#include "gpu_timer.h"
#include "heddle/check.h"

namespace heddle::bench {
namespace {

constexpr std::int64_t kTokens = 16384, kColumns = 2048;

/// The kernel at a place of the planner's list, ready to run on the q, k, v, o and lse of a Memory, which outlives it.
/// Throws std::out_of_range past the list's end, and base::Rejected.
class Runner {
 public:
  Runner(const Memory& memory, std::size_t number) : options_(memory.options) {
    tensors_ = {.q = memory.q, .k = memory.k, .v = memory.v, .o = memory.o.view()};
    tensors_.lse = memory.lse.view();
    const problem::AttentionProblem problem = problem::validate(tensors_, options_);
    const plan::Request request{problem, tensors_, options_, engine::machine()};
    std::vector<plan::Choice> choices = plan::choose(request, [&](BlockSize block) -> std::shared_ptr<const BlockMask> {
      if (problem.mask_mod.empty()) return nullptr;
      return std::make_shared<BlockMask>(
          BlockMask::build(problem.mask_mod, {problem.q_heads, problem.sequences}, block));
    });
    const plan::Choice& choice = choices.at(number);
    name = forward_mma::name_of(choice.plan.part<shared::ForwardMmaConfig>());
    rows_ = choice.block_mask;
    kernel_ = plan::prepare_kernel(choice.plan, rows_.get(), request, options_.bindings);
    workspace_ =
        Tensor::empty_on(tensors_.q.device, DType::u8, {std::max<std::int64_t>(1, choice.plan.workspace_bytes)});
  }
  void operator()(void* stream) const {
    kernel_->launch({.tensors = tensors_,
                     .options = &options_,
                     .bindings = &options_.bindings,
                     .block_mask = rows_.get(),
                     .workspace = workspace_.data(),
                     .stream = stream});
  }

  std::string name;

 private:
  const AttentionOptions& options_;
  AttentionTensors tensors_;
  std::shared_ptr<const BlockMask> rows_;
  std::unique_ptr<backend::Kernel> kernel_;
  Tensor workspace_;
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
double seconds_of(const Runner& runner, int times, GpuTimer& timer) {
  std::vector<double> rounds;
  timer.seconds(1, [&] { runner(timer.stream()); });
  for (int round = 0; round < 5; ++round) rounds.push_back(timer.seconds(times, [&] { runner(timer.stream()); }));
  std::ranges::sort(rounds);
  return rounds[2];
}

/// True where the criterion is met, or the kernel does not run.
bool check_and_time(std::int64_t dim, std::size_t kernel, const Arguments& arguments, const Device& gpu,
                    GpuTimer& timer) {
  const Memory small(1, 2, 400, {dim, dim}, true, gpu, arguments.dtype, arguments.tf32);
  const Runner checked(small, kernel);
  timer.seconds(1, [&] { checked(timer.stream()); });
  const CheckReport report = check_attention(small.q, small.k, small.v, small.options, small.o, small.lse.view());
  fmt::print("D {} {}: {}\n", dim, checked.name, report.passed ? "within the criterion" : "WRONG\n" + report.text());
  if (!report.passed) return false;
  const std::int64_t heads = kColumns / dim;
  for (const bool causal : {false, true}) {
    for (const std::int64_t length : arguments.lengths) {
      const Memory memory(kTokens / length, heads, length, {dim, dim}, causal, gpu, arguments.dtype, arguments.tf32);
      const double seconds = seconds_of(Runner(memory, kernel), arguments.times, timer);
      const double flops = static_cast<double>(4 * kTokens * length * heads * dim) * (causal ? 0.5 : 1);
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
  ::setenv("HEDDLE_FAMILY", "forward_mma", 1);  // the family alone, where another would be chosen
  return heddle::bench::run(heddle::bench::parse(count, words));
}
