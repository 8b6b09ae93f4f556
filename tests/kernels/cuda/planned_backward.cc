#include "kernels/cuda/planned_backward.h"

#include <algorithm>

#include "engine/planners_mask.h"
#include "families/backward_sm90/backward_reads_launch.h"
#include "families/backward_sm90/backward_reads_text.h"
#include "families/backward_sm90/backward_sm90.h"
#include "families/backward_sm90/backward_sm90_arguments.h"
#include "heddle/error.h"
#include "plan/hopper.h"
#include "problem/lengths_on_device.h"

namespace heddle::test {
PlannedBackward plan_backward(const BackwardTensors& tensors, const AttentionOptions& options, bool device_lengths) {
  problem::AttentionProblem problem = problem::validate(tensors, options);
  if (device_lengths) problem = with_lengths_on_device(problem, options);
  const AttentionTensors forward = problem::forward_tensors(tensors);
  const device::Machine machine{};
  const plan::Request request{problem, forward, options, machine, &tensors};
  if (const std::string reason = plan::backward_sm90_refuses(request, h200()); !reason.empty()) {
    throw Error(ErrorCode::unsupported, reason);
  }
  engine::MaskRows rows;
  std::vector<plan::Choice> choices =
      plan::backward_sm90(request, h200(), [&](BlockSize block) { return rows(problem, options, block); });
  return {std::move(problem), std::move(choices)};
}

std::vector<cuda::jit::Source> sources_of(const PlannedBackward& planned, const plan::Choice& choice,
                                          const BackwardTensors& tensors, const AttentionOptions& options) {
  const shared::BackwardSm90Config& config = choice.plan.part<shared::BackwardSm90Config>();
  const plan::BackwardMods mods = plan::backward_sm90_mods(planned.problem, config);
  const plan::BackwardReads reads = plan::backward_reads(planned.problem, options.bindings, mods.kv_start);
  const device_text::ModLayout layout = backward_sm90::backward_layout(mods, reads);
  std::vector<cuda::jit::Source> sources = {backward_sm90::rows_source(config)};
  const auto& wanted = planned.problem.wanted;
  if (wanted.q || wanted.k || wanted.v) sources.push_back(backward_sm90::main_source(config, mods, layout));
  if (reads.any()) {
    const shared::BackwardSm90Config of_reads = plan::reads_config(config, reads);
    const std::vector<shared::StorageType> types = backward_sm90::types_of_reads(reads, tensors);
    sources.push_back(backward_sm90::sums_source(of_reads, reads, types, layout));
    if (reads.visits_pairs()) sources.push_back(backward_sm90::reads_source(of_reads, mods, reads, types, layout));
  }
  return sources;
}

}  // namespace heddle::test
