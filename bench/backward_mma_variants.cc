// Checks each kernel in the table of the portable backward against the reference on a small problem, then times it,
// full and causal.
//
//   bench_backward_mma_variants [--dim D,...] [--lengths N,...] [--kernel I] [--times N] [--device I]
//
// Prints milliseconds and TFLOP/s of all kernels of a run (5 products; causal counts half), or why kernels cannot run.
// Exits 1 if gradients fail the criterion of heddle/check.h.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "backend/backend.h"
#include "backend/cuda/driver/driver.h"
#include "base/rejected.h"
#include "engine/machine.h"
#include "families/backward_mma/backward_mma_text.h"
#include "families/choose.h"
#include "families/table.h"
#include "gpu_timer.h"
#include "heddle/heddle.h"
#include "plan/plan.h"

namespace heddle::bench {
namespace {

constexpr std::int64_t kTokens = 16384, kColumns = 2048;

/// A problem's tensors: inputs drawn on the host, o and lse by the library, gradients.
struct Memory {
  Tensor q, k, v, d_o, o, lse, dq, dk, dv;
  AttentionOptions options{};

  Memory(std::int64_t batch, std::int64_t heads, std::int64_t length, std::int64_t dim, bool causal,
         const Device& place) {
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    std::vector<float> pool(1'000'003);
    for (float& x : pool) x = normal(random);
    const Dims shape{batch, heads, length, dim};
    for (Tensor* input : {&q, &k, &v, &d_o}) {
      Tensor drawn = Tensor::empty(DType::f32, shape);
      auto* values = static_cast<float*>(drawn.data());
      const std::int64_t from = random() % 1'000;
      for (std::int64_t i = 0; i < drawn.count(); ++i)
        values[i] = pool[static_cast<std::size_t>(from + i) % pool.size()];
      *input = drawn.to(DType::bf16).to(place);
    }
    if (causal) options.mask_mod = mods::causal();
    AttentionResult forward = attention(q, k, v, options, true);
    o = std::move(forward.o), lse = std::move(forward.lse);
    for (Tensor* gradient : {&dq, &dk, &dv}) *gradient = Tensor::empty_on(place, DType::bf16, shape);
  }
  BackwardTensors tensors() const {
    BackwardTensors all{.q = q, .k = k, .v = v, .o = o, .d_o = d_o};
    all.lse = lse;
    all.dq = dq.view(), all.dk = dk.view(), all.dv = dv.view();
    return all;
  }
};

/// The kernels that stand at a place of the planner's list, ready to run. Throws std::out_of_range past its end, and
/// base::Rejected.
class Runner {
 public:
  Runner(const Memory& memory, std::size_t number) : memory_(memory), tensors_(memory.tensors()) {
    const AttentionTensors forward = problem::forward_tensors(tensors_);
    const problem::AttentionProblem problem = problem::validate(tensors_, memory.options);
    const plan::Request request{problem, forward, memory.options, engine::machine(), &tensors_};
    std::vector<plan::Choice> choices = plan::choose(request, [&](BlockSize block) -> std::shared_ptr<const BlockMask> {
      if (problem.mask_mod.empty()) return nullptr;
      return std::make_shared<BlockMask>(
          BlockMask::build(problem.mask_mod, {problem.q_heads, problem.sequences}, block));
    });
    const plan::Choice& choice = choices.at(number);
    name = backward_mma::name_of(choice.plan.part<plan::BackwardMmaKernels>());
    rows_ = choice.block_mask;
    kernel_ = plan::prepare_kernel(choice.plan, rows_.get(), request, memory.options.bindings);
    workspace_ =
        Tensor::empty_on(tensors_.q.device, DType::u8, {std::max<std::int64_t>(1, choice.plan.workspace_bytes)});
  }
  void operator()(void* stream) const {
    kernel_->launch({.tensors = problem::forward_tensors(tensors_),
                     .options = &memory_.options,
                     .bindings = &memory_.options.bindings,
                     .block_mask = rows_.get(),
                     .workspace = workspace_.data(),
                     .stream = stream,
                     .backward = &tensors_});
  }
  const BackwardTensors& tensors() const { return tensors_; }
  std::string name;

 private:
  const Memory& memory_;
  BackwardTensors tensors_;
  std::shared_ptr<const BlockMask> rows_;
  std::unique_ptr<backend::Kernel> kernel_;
  Tensor workspace_;
};

struct Arguments {
  std::vector<std::int64_t> dims = {64, 128, 256}, lengths = {512, 2048, 8192, 16384};
  int kernel = -1;  // all
  int times = 4, device = 0;
};

std::vector<std::int64_t> numbers_of(std::string_view text) {
  std::vector<std::int64_t> numbers;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find(',', at), text.size());
    numbers.push_back(std::atoll(std::string(text.substr(at, end - at)).c_str()));
    at = end + 1;
  }
  return numbers;
}

Arguments parse(int count, char** words) {
  Arguments arguments;
  for (int i = 1; i + 1 < count; i += 2) {
    const std::string_view word = words[i];
    if (word == "--dim") arguments.dims = numbers_of(words[i + 1]);
    if (word == "--lengths") arguments.lengths = numbers_of(words[i + 1]);
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

/// True where the criterion is met, or the kernels do not run.
bool check_and_time(std::int64_t dim, std::size_t kernel, const Arguments& arguments, const Device& place,
                    GpuTimer& timer) {
  const Memory small(1, 2, 400, dim, true, place);
  const Runner checked(small, kernel);
  timer.seconds(1, [&] { checked(timer.stream()); });
  const GradientReport report = check_backward(checked.tensors(), small.options);
  fmt::print("D {} {}: {}\n", dim, checked.name, report.passed ? "within the criterion" : "WRONG\n" + report.text());
  if (!report.passed) return false;
  const std::int64_t heads = kColumns / dim;
  for (const bool causal : {false, true}) {
    for (const std::int64_t length : arguments.lengths) {
      const Memory memory(kTokens / length, heads, length, dim, causal, place);
      const double seconds = seconds_of(Runner(memory, kernel), arguments.times, timer);
      const double flops = static_cast<double>(10 * kTokens * length * heads * dim) * (causal ? 0.5 : 1);
      fmt::print("  {} {}: {:.3f} ms {:.0f}\n", causal ? "causal" : "full", length, 1e3 * seconds,
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
  const Device place{DeviceKind::cuda, arguments.device};
  GpuTimer timer(arguments.device);
  bool right = true;
  for (const std::int64_t dim : arguments.dims) {
    constexpr std::size_t kMost = 8;  // more than the table has for any head dim
    for (std::size_t i = 0; i < kMost; ++i) {
      if (arguments.kernel >= 0 && static_cast<std::size_t>(arguments.kernel) != i) continue;
      try {
        right = check_and_time(dim, i, arguments, place, timer) && right;
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
