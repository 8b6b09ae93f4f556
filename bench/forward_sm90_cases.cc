#include "forward_sm90_cases.h"

#include <fmt/format.h>

#include <cstdio>
#include <random>
#include <string>

#include "backend/backend.h"
#include "engine/machine.h"
#include "families/forward_sm90/forward_sm90_costs.h"
#include "families/table.h"
#include "gpu_timer.h"

namespace heddle::bench {
namespace {

/// Views of [B, S, H, D] memory as attention reads it.
AttentionTensors tensors_of(const TimedCase& timed, const std::vector<Tensor>& memory) {
  const Problem& problem = timed.problem;
  const std::int64_t batch = problem.tokens / problem.length, heads = heads_of(timed.config);
  const auto view = [&](std::size_t i, int dim) {
    return permute(TensorView(memory[i].data(), memory[i].view().dtype, {batch, problem.length, heads, dim},
                              memory[i].view().device),
                   {0, 2, 1, 3});
  };
  const int qk = timed.config.qk_dim, v = timed.config.v_dim;
  const std::size_t first = timed.config.fp8() ? 5 : 0;
  return {view(first, qk), view(first + 1, qk), view(first + 2, v), view(3, v),
          TensorView(memory[4].data(), DType::f32, {batch, heads, problem.length}, memory[4].view().device)};
}

/// q, k, v, o and lse of any problem, and q, k and v in e4m3. Keys like a query, or like other keys, would make rows
/// move m more often.
std::vector<Tensor> random_memory(int device, std::mt19937& random) {
  std::normal_distribution<float> normal;
  std::vector<float> pool((1 << 22) - 3);  // an odd period: no two rows of a tensor are alike
  for (float& value : pool) value = normal(random);
  const Device gpu = {DeviceKind::cuda, device};
  Tensor some = Tensor::empty(DType::f32, {kTokens * kColumns});
  std::vector<Tensor> memory, eight_bits;
  for (std::size_t tensor = 0; tensor < 4; ++tensor) {
    auto* values = static_cast<float*>(some.data());
    for (std::size_t i = 0; i < static_cast<std::size_t>(some.count()); ++i) {
      values[i] = pool[(i + tensor * 1'000'003) % pool.size()];
    }
    memory.push_back(some.to(DType::bf16).to(gpu));
    if (tensor < 3) eight_bits.push_back(some.to(DType::e4m3).to(gpu));
  }
  memory.push_back(Tensor::empty_on(gpu, DType::f32, {kTokens * kColumns / 64}));
  memory.insert(memory.end(), eight_bits.begin(), eight_bits.end());
  return memory;
}

class Runner {
 public:
  Runner(TimedCase& timed, const AttentionTensors& tensors, void* stream)
      : of(&timed), tensors_(tensors), stream_(stream) {
    options_.block_mask = timed.rows;
    options_.mask_mod = mask_of(timed.problem);
    if (timed.dropout) {
      options_.weight_mod = mods::dropout(0.1, param("seed", ExprType::i32));
      options_.bindings.params["seed"] = std::int32_t{1};
    }
    const problem::AttentionProblem problem = problem::validate(tensors_, options_);
    const plan::Request request = {problem, tensors_, options_, engine::machine()};
    std::vector<plan::Choice> choices = plan::choose(request, [&](BlockSize) { return timed.rows; });
    const auto chosen = std::ranges::find_if(
        choices, [](const plan::Choice& choice) { return choice.plan.has<shared::ForwardSm90Config>(); });
    if (chosen == choices.end()) throw Error(ErrorCode::internal, "the planner offers no kernel of the family");
    chosen->plan.tile = {timed.config.rows(), timed.config.kv_block};
    chosen->plan.family_part = timed.config;
    chosen->plan.order = timed.order;
    chosen->plan.schedule.reset();  // of another tile
    kernel_ = plan::prepare_kernel(chosen->plan, timed.rows.get(), request, options_.bindings);
    workspace_ = Tensor::empty_on(tensors_.q.device, DType::u8, {chosen->plan.workspace_bytes});
  }

  void operator()() const {
    kernel_->launch({.tensors = tensors_,
                     .options = &options_,
                     .bindings = &options_.bindings,
                     .block_mask = of->rows.get(),
                     .workspace = workspace_.data(),
                     .stream = stream_});
  }

  TimedCase* of;
  int times = 1;

 private:
  AttentionTensors tensors_;
  void* stream_;
  AttentionOptions options_{};
  std::unique_ptr<backend::Kernel> kernel_{};
  Tensor workspace_{};
};

}  // namespace

Expr mask_of(const Problem& problem) {
  if (problem.mask == "causal") return mods::causal();
  if (problem.mask == "window") return mods::sliding_window(problem.length / 4);
  return {};
}

TimedCase::TimedCase(const Problem& asked, const shared::ForwardSm90Config& with) : problem(asked), config(with) {
  config.lse = true;
  config.masked = problem.mask != "full";
  const MaskShape shape =
      MaskShape::uniform(problem.tokens / problem.length, heads_of(config), problem.length, problem.length);
  rows = std::make_shared<BlockMask>(BlockMask::build(mask_of(problem), shape, {64, config.kv_block}));
}

void measure(std::span<TimedCase* const> cases, int device, int rounds, double seconds) {
  GpuTimer timer(device);
  std::mt19937 random(1);
  const std::vector<Tensor> memory = random_memory(device, random);

  std::vector<std::unique_ptr<Runner>> runners;
  for (TimedCase* timed : cases) {
    const shared::ForwardSm90Config& config = timed->config;
    try {
      runners.push_back(std::make_unique<Runner>(*timed, tensors_of(*timed, memory), timer.stream()));
    } catch (const Error& error) {
      fmt::print(stderr, "D {}, {} x {} on {}: {}\n", plan::to_string(plan::HeadDims{config.qk_dim, config.v_dim}),
                 config.rows(), config.kv_block, timed->problem.mask, error.what());
      continue;
    }
    Runner& runner = *runners.back();
    timer.seconds(1, runner);
    runner.times = std::max(1, static_cast<int>(seconds / timer.seconds(3, runner)));
  }
  for (int round = 0; round < rounds; ++round) {
    std::ranges::shuffle(runners, random);
    for (const auto& runner : runners) {
      timer.seconds(1, *runner);
      runner->of->seconds.push_back(timer.seconds(runner->times, *runner));
    }
  }
}

}  // namespace heddle::bench
