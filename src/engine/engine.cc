// The flow of an attention: validate > analyse > plan > prepare, once; launch, many times.
#include <fmt/format.h>

#include <cstdint>
#include <utility>

#include "base/profiler_range.h"
#include "base/report.h"
#include "engine/callers_mask.h"
#include "engine/machine.h"
#include "engine/pointers.h"
#include "engine/prepare.h"
#include "engine/reports.h"
#include "engine/state.h"
#include "engine/tuning.h"
#include "engine/write_call.h"
#include "families/table.h"
#include "heddle/error.h"

namespace heddle {
namespace {

constexpr std::uintptr_t kWorkspaceAlignment = 64;

// The caller's workspace, or one for this run, which a GPU's does not get: it would have to be waited for.
void* workspace_of(const Device& device, std::int64_t bytes, void* given, Tensor& allocated) {
  if (reinterpret_cast<std::uintptr_t>(given) % kWorkspaceAlignment != 0) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("workspace is at {}; an address that 64 divides is accepted", fmt::ptr(given)));
  }
  if (given != nullptr || bytes == 0) return given;
  if (device.kind != DeviceKind::cpu) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("workspace is null; {} bytes on {} are accepted, since a run on a GPU allocates nothing",
                            bytes, problem::name(device)));
  }
  allocated = Tensor::empty(DType::u8, {bytes});
  return allocated.data();
}

const AttentionTensors& shared_with_forward(const AttentionTensors& tensors) { return tensors; }
AttentionTensors shared_with_forward(const BackwardTensors& tensors) { return problem::forward_tensors(tensors); }
const BackwardTensors* backward_of(const AttentionTensors&) { return nullptr; }
const BackwardTensors* backward_of(const BackwardTensors& tensors) { return &tensors; }

/// The planner's first choice, or the one that a measurement found fastest, prepared, with what became of tuning.
/// Throws as plan::choose() and prepare_first().
engine::Prepared prepare_chosen(const plan::Request& request, const plan::RowsOf& rows_of) {
  const engine::Prepare prepare = [&](const plan::Choice& choice) {
    return plan::prepare_kernel(choice.plan, choice.block_mask.get(), request, request.options.bindings);
  };
  engine::Tuner tuner(request);
  std::vector<plan::Choice> choices = tuner.ordered(plan::choose(request, rows_of, tuner.wants_variants()));
  if (tuner.measures(choices)) return tuner.fastest_of(std::move(choices), prepare);
  engine::Prepared first = engine::prepare_first(std::move(choices), prepare);
  first.plan.tuning_trouble = tuner.trouble();
  return first;
}

}  // namespace

template <class Tensors>
void AttentionPlan::State::plan_for(const Tensors& tensors, const AttentionOptions& given) {
  const base::ProfilerRange range("heddle plan");
  base::hears_events();  // throws for a HEDDLE_LOG that cannot be opened before anything is planned
  const engine::Clock::time_point began = engine::Clock::now();
  engine::reported("plan", [&] { make_plan(tensors, given); });
  const engine::Clock::duration took = engine::Clock::now() - began;
  if (base::hears_events()) engine::report_plan(problem, plan, took, engine::write_call(tensors, given));
}

template <class Tensors>
void AttentionPlan::State::make_plan(const Tensors& tensors, const AttentionOptions& given) {
  options = given;
  problem = problem::validate(tensors, options);
  options.block_mask = engine::followed_mask(problem, options);
  planned = problem::PlannedTensors(tensors);
  reads_depend_on_values = problem::reads_depend_on_values(problem, options.bindings);
  const plan::Request asked = request();
  engine::Prepared prepared =
      prepare_chosen(asked, [&](BlockSize block) { return mask_rows(problem, options, block); });
  plan = std::move(prepared.plan);
  plan.schedule.reset();  // the kernel has its own copy of the lists
  block_mask = std::move(prepared.block_mask);
  kernel = std::move(prepared.kernel);
}

AttentionPlan::AttentionPlan(const AttentionTensors& tensors, const AttentionOptions& options)
    : state_(std::make_shared<State>()) {
  state_->plan_for(tensors, options);
}

template <std::same_as<BackwardTensors> Tensors>
AttentionPlan::AttentionPlan(const Tensors& tensors, const AttentionOptions& options)
    : state_(std::make_shared<State>()) {
  state_->plan_for(tensors, options);
}
template AttentionPlan::AttentionPlan(const BackwardTensors&, const AttentionOptions&);

plan::Request AttentionPlan::State::request() const {
  return {problem, planned.tensors, options, engine::machine_for(problem.device, options),
          planned.backward ? &*planned.backward : nullptr};
}

template <class Tensors>
void AttentionPlan::State::run(const Tensors& tensors, const RunOptions& run, bool mask_is_current) const {
  const base::ProfilerRange range(backward_of(tensors) == nullptr ? "heddle forward" : "heddle backward");
  engine::reported("run", [&] { check_and_launch(tensors, run, mask_is_current); });
}
template void AttentionPlan::State::run(const AttentionTensors&, const RunOptions&, bool) const;
template void AttentionPlan::State::run(const BackwardTensors&, const RunOptions&, bool) const;

template <class Tensors>
void AttentionPlan::State::check_and_launch(const Tensors& tensors, const RunOptions& run, bool mask_is_current) const {
  const engine::PlanUse::Run used(use);
  const AttentionOptions& given = run.options != nullptr ? *run.options : options;
  const Bindings& values = run.bindings != nullptr ? *run.bindings : given.bindings;
  if (run.options != nullptr) problem::check_planned_options(problem, options, given);
  const bool known = &values == &options.bindings || problem::fits_planned(problem, options.bindings, values);
  if (!known || reads_depend_on_values) problem::validate_bindings(problem, values);
  problem::validate_run(problem, planned, tensors, given, values);
  const bool on_gpu = problem.device.kind != DeviceKind::cpu;
  if (on_gpu) engine::check_pointers(problem, tensors, given, values);
  if (block_mask != nullptr && !mask_is_current) block_mask->check_current(values);

  Tensor allocated;
  void* workspace = workspace_of(problem.device, plan.workspace_bytes, run.workspace, allocated);
  if (on_gpu && plan.workspace_bytes > 0) engine::check_workspace(workspace, problem.device);
  kernel->launch({.tensors = shared_with_forward(tensors),
                  .options = &given,
                  .bindings = &values,
                  .block_mask = block_mask.get(),
                  .workspace = workspace,
                  .stream = run.stream,
                  .backward = backward_of(tensors)});
}

void AttentionPlan::run(const AttentionTensors& tensors, const RunOptions& options) const {
  engine::state_in(state_).run(tensors, options, false);
}

template <std::same_as<BackwardTensors> Tensors>
void AttentionPlan::run(const Tensors& tensors, const RunOptions& options) const {
  engine::state_in(state_).run(tensors, options, false);
}
template void AttentionPlan::run(const BackwardTensors&, const RunOptions&) const;

void AttentionPlan::update(const Bindings& bindings) {
  State& state = engine::state_in(state_);
  if (state.cached) {
    throw Error(
        ErrorCode::invalid_argument,
        "update of a plan of the plan cache, which other calls share; a plan that AttentionPlan's constructor made "
        "is accepted");
  }
  const engine::PlanUse::Update used(state.use);
  problem::refuse_unread(state.problem, bindings);
  Bindings merged = bindings;
  merged.captures.insert(state.options.bindings.captures.begin(), state.options.bindings.captures.end());
  merged.params.insert(state.options.bindings.params.begin(), state.options.bindings.params.end());
  problem::validate_bindings(state.problem, merged);
  const bool reads_depend_on_values = problem::reads_depend_on_values(state.problem, merged);

  std::shared_ptr<const BlockMask> block_mask = state.block_mask;
  if (block_mask != nullptr) {
    block_mask = state.mask_rows.updated(state.problem, state.options, *block_mask, merged);
  }
  state.kernel = plan::prepare_kernel(state.plan, block_mask.get(), state.request(), merged);
  state.block_mask = std::move(block_mask);
  state.reads_depend_on_values = reads_depend_on_values;
  state.options.bindings = std::move(merged);
}

std::int64_t AttentionPlan::workspace_bytes() const { return engine::state_in(state_).plan.workspace_bytes; }

const BlockMask* AttentionPlan::block_mask() const { return engine::state_in(state_).block_mask.get(); }

BackendChoice AttentionPlan::backend() const { return engine::state_in(state_).plan.family->backend; }

}  // namespace heddle
