// The plan of an attention on a GPU that need not be here.

#include "device/known_gpus.h"
#include "engine/callers_mask.h"
#include "engine/explain.h"
#include "engine/machine.h"
#include "engine/planners_mask.h"
#include "families/table.h"
#include "problem/check_run.h"
#include "problem/option_views.h"

namespace heddle {
namespace {

AttentionTensors moved_to(AttentionTensors tensors, const Device& device) {
  for (ConstTensorView* view : {&tensors.q, &tensors.k, &tensors.v}) view->device = device;
  tensors.o.device = device;
  for (auto* view : {&tensors.lse, &tensors.max_scores, &tensors.lse_rest}) {
    if (*view) (*view)->device = device;
  }
  return tensors;
}

BackwardTensors moved_to(BackwardTensors tensors, const Device& device) {
  for (ConstTensorView* view : {&tensors.q, &tensors.k, &tensors.v, &tensors.o, &tensors.d_o}) view->device = device;
  for (auto* view : {&tensors.lse, &tensors.d_lse, &tensors.lse_rest}) {
    if (*view) (*view)->device = device;
  }
  for (auto* view : {&tensors.dq, &tensors.dk, &tensors.dv, &tensors.d_sinks}) {
    if (*view) (*view)->device = device;
  }
  for (NamedViews* gradients : {&tensors.d_captures, &tensors.d_params}) {
    for (auto& [name, view] : *gradients) view.device = device;
  }
  return tensors;
}

template <class Tensors>
Explanation explain_there(std::string_view gpu, const Tensors& tensors, const AttentionOptions& options) {
  const device::KnownMachine target = device::with_known_gpu(engine::cpu_machine(), gpu);
  const Device device = {target.kind, 0};

  // These views claim the GPU as their device; the block mask is built from the tensors where they really are.
  const Tensors there = moved_to(tensors, device);
  AttentionOptions options_there = options;
  options_there.backend = BackendChoice::automatic;
  for (auto& [name, capture] : options_there.bindings.captures) capture.device = device;
  for (const problem::OptionView& option : problem::kTensorOptions) {
    std::optional<ConstTensorView>& view = options_there.*option.member;
    if (view) view->device = device;
  }

  const problem::AttentionProblem problem = problem::validate(there, options_there);
  AttentionOptions options_here = options;  // its captures are where the caller has them
  options_here.block_mask = options_there.block_mask = engine::followed_mask(problem, options);
  engine::MaskRows rows;
  const problem::PlannedTensors planned(there);
  const plan::Request request = {problem, planned.tensors, options_there, target.machine,
                                 planned.backward ? &*planned.backward : nullptr};
  const std::vector<plan::Choice> choices =
      plan::choose(request, [&](BlockSize block) { return rows(problem, options_here, block); });
  const nlohmann::ordered_json explanation =
      engine::explanation(problem, choices.front().block_mask.get(), rows.found(), choices.front().plan, nullptr);
  return {engine::to_text(explanation), explanation.dump(2)};
}

}  // namespace

Explanation explain_on(std::string_view gpu, const AttentionTensors& tensors, const AttentionOptions& options) {
  return explain_there(gpu, tensors, options);
}

template <std::same_as<BackwardTensors> Tensors>
Explanation explain_on(std::string_view gpu, const Tensors& tensors, const AttentionOptions& options) {
  return explain_there(gpu, tensors, options);
}
template Explanation explain_on(std::string_view gpu, const BackwardTensors&, const AttentionOptions&);

}  // namespace heddle
