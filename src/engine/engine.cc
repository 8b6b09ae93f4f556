// The flow of an attention: validate > analyse > plan > prepare, once; launch, many times.
#include <fmt/format.h>

#include <cstdint>
#include <utility>

#include "backend/cpu/caps.h"
#include "engine/state.h"
#include "heddle/error.h"

namespace heddle {
namespace {

constexpr std::uintptr_t kWorkspaceAlignment = 64;

const backend::Backend& find_backend(BackendChoice choice) {
  const backend::Backend* found = nullptr;
  for (const backend::Backend* candidate : {&backend::cpu_backend(), &backend::reference_backend()}) {
    if (candidate->choice != choice) continue;
    if (found != nullptr) throw Error(ErrorCode::internal, fmt::format("two backends are called {}", name(choice)));
    found = candidate;
  }
  if (found == nullptr) throw Error(ErrorCode::internal, fmt::format("no backend is called {}", name(choice)));
  return *found;
}

std::shared_ptr<const BlockMask> analyse_mask(const problem::AttentionProblem& problem, BlockSize block,
                                              const AttentionOptions& options) {
  if (options.block_mask != nullptr) {
    options.block_mask->check_current(options.bindings);
    return options.block_mask;
  }
  if (problem.mask_mod.empty()) return nullptr;
  const DType reals = problem.precision == expr::Precision::f64 ? DType::f64 : DType::f32;
  return std::make_shared<BlockMask>(BlockMask::build(problem.mask_mod, {problem.q_heads, problem.sequences}, block,
                                                      options.bindings, options.threads, reals));
}

std::unique_ptr<backend::Kernel> prepare(const backend::PrepareArguments& arguments) {
  const backend::Backend& backend = find_backend(arguments.plan.backend);
  if (const std::string reason = backend.refuses(arguments.problem); !reason.empty()) {
    throw Error(ErrorCode::unsupported, fmt::format("backend {}: {}", name(arguments.plan.backend), reason));
  }
  return backend.prepare(arguments);
}

void check_workspace(const void* workspace) {
  if (reinterpret_cast<std::uintptr_t>(workspace) % kWorkspaceAlignment == 0) return;
  throw Error(ErrorCode::invalid_argument,
              fmt::format("workspace is at {}; an address that 64 divides is accepted", fmt::ptr(workspace)));
}

}  // namespace

AttentionPlan::AttentionPlan(const AttentionTensors& tensors, const AttentionOptions& options)
    : state_(std::make_shared<State>()) {
  State& state = *state_;
  state.tensors = tensors;
  state.options = options;
  state.problem = problem::validate(tensors, options);
  state.reads_depend_on_values = problem::reads_depend_on_values(state.problem);
  const device::Machine machine = {.cpu = cpu::cpu_caps(), .cuda = {}, .cuda_missing = {}};
  std::vector<plan::Choice> choices = plan::choose(state.problem, tensors, options, machine, [&](BlockSize block) {
    return analyse_mask(state.problem, block, options);
  });
  state.plan = std::move(choices.front().plan);
  state.block_mask = std::move(choices.front().block_mask);
  state.kernel = prepare({state.problem, state.plan, tensors, options, options.bindings, state.block_mask.get()});
}

void AttentionPlan::run(const AttentionTensors& tensors, const RunOptions& options) const {
  const State& state = *state_;
  void* workspace = options.workspace;
  const Bindings* bindings = options.bindings;
  const Bindings& values = bindings != nullptr ? *bindings : state.options.bindings;
  if (bindings != nullptr || state.reads_depend_on_values) problem::validate_bindings(state.problem, values);
  problem::validate_run(state.problem, state.tensors, tensors, state.options, values);
  if (state.block_mask != nullptr) state.block_mask->check_current(values);

  Tensor allocated;
  if (workspace == nullptr && state.plan.workspace_bytes > 0) {
    allocated = Tensor::empty(DType::u8, {state.plan.workspace_bytes});
    workspace = allocated.data();
  }
  check_workspace(workspace);
  state.kernel->launch({.tensors = tensors,
                        .options = &state.options,
                        .bindings = &values,
                        .block_mask = state.block_mask.get(),
                        .workspace = workspace,
                        .stream = options.stream});
}

void AttentionPlan::update(const Bindings& bindings) {
  State& state = *state_;
  Bindings merged = bindings;
  merged.captures.insert(state.options.bindings.captures.begin(), state.options.bindings.captures.end());
  merged.params.insert(state.options.bindings.params.begin(), state.options.bindings.params.end());
  problem::validate_bindings(state.problem, merged);

  std::shared_ptr<const BlockMask> block_mask = state.block_mask;
  if (block_mask != nullptr) {
    auto rebuilt = std::make_shared<BlockMask>(*block_mask);
    rebuilt->update(merged, state.options.threads);
    block_mask = std::move(rebuilt);
  }
  state.kernel = prepare({state.problem, state.plan, state.tensors, state.options, merged, block_mask.get()});
  state.block_mask = std::move(block_mask);
  state.options.bindings = std::move(merged);
}

std::int64_t AttentionPlan::workspace_bytes() const { return state_->plan.workspace_bytes; }

const BlockMask* AttentionPlan::block_mask() const { return state_->block_mask.get(); }

BackendChoice AttentionPlan::backend() const { return state_->plan.backend; }

}  // namespace heddle
