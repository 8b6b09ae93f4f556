#include "engine/call_there.h"

#include "engine/callers_mask.h"
#include "engine/machine.h"
#include "problem/option_views.h"

namespace heddle::engine {
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

}  // namespace

template <class Tensors>
CallThere::CallThere(std::string_view gpu, const Tensors& tensors, const AttentionOptions& options)
    : target_(device::with_known_gpu(cpu_machine(), gpu)), options_here_(options), options_there_(options) {
  const Device device = {target_.kind, 0};
  const Tensors there = moved_to(tensors, device);
  options_there_.backend = BackendChoice::automatic;
  for (auto& [name, capture] : options_there_.bindings.captures) capture.device = device;
  for (const problem::OptionView& option : problem::kTensorOptions) {
    std::optional<ConstTensorView>& view = options_there_.*option.member;
    if (view) view->device = device;
  }
  problem_ = problem::validate(there, options_there_);
  options_here_.block_mask = options_there_.block_mask = followed_mask(problem_, options);
  planned_ = problem::PlannedTensors(there);
}
template CallThere::CallThere(std::string_view, const AttentionTensors&, const AttentionOptions&);
template CallThere::CallThere(std::string_view, const BackwardTensors&, const AttentionOptions&);

plan::Request CallThere::request() const {
  return {problem_, planned_.tensors, options_there_, target_.machine,
          planned_.backward ? &*planned_.backward : nullptr};
}

}  // namespace heddle::engine
