#include "backward.h"

#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include "arguments.h"
#include "backward_tensors.h"
#include "heddle/backward.h"
#include "heddle/check.h"
#include "planned_call.h"
#include "shared_block_mask.h"
#include "tensors.h"
#include "workspaces.h"

namespace heddle::python {
namespace {

using namespace nb::literals;
using Workspace = std::optional<Array>;

MadeTuple backward(const BackwardInputs& inputs, const Targets& targets, const Arguments& arguments) {
  const AttentionOptions options = options_of(arguments);
  BackwardTensors tensors = tensors_of(inputs, targets, options);
  const MadeGradients made(tensors);
  {
    const WithoutGil released;
    attention_backward_into(tensors, options);
  }
  return made.to_python();
}

/// heddle._core.BackwardPlan: the plan of a backward, and what its runs read.
class BackwardPlan : public PlannedCall {
 public:
  /// `is_kept`: the plan of the library's cache that attention_backward would run.
  BackwardPlan(const BackwardInputs& inputs, const Targets& targets, const Arguments& arguments, bool is_kept)
      : PlannedCall(arguments), is_kept_(is_kept) {
    const AttentionOptions options = options_of(arguments_);
    planned_ = tensors_of(inputs, targets, options);
    device_ = planned_.q.device;
    const WithoutGil released;
    plan_.emplace(is_kept ? cached_plan(planned_, options) : AttentionPlan(planned_, options));
  }

  MadeTuple run(const BackwardInputs& inputs, const Targets& targets, const Workspace& workspace, std::uintptr_t stream,
                const Arguments* instead) const {
    const AttentionOptions options = options_of(instead == nullptr ? arguments_ : *instead);
    BackwardTensors tensors = tensors_of(inputs, targets, options);
    take_dtypes(tensors);
    const RunOptions run{.workspace = workspace_of(workspace, device_, plan_->workspace_bytes()),
                         .stream = reinterpret_cast<void*>(stream),
                         .options = instead == nullptr && !is_kept_ ? nullptr : &options};
    const MadeGradients made(tensors);
    {
      const WithoutGil released;
      plan_->run(tensors, run);
    }
    return made.to_python();
  }

 private:
  /// Gives the tensors that a run makes their planned dtypes.
  void take_dtypes(BackwardTensors& tensors) const {
    const auto take = [](std::optional<TensorView>& made, const std::optional<TensorView>& planned) {
      if (made && made->data == nullptr && planned) made->dtype = planned->dtype;
    };
    take(tensors.dq, planned_.dq);
    take(tensors.dk, planned_.dk);
    take(tensors.dv, planned_.dv);
    take(tensors.d_sinks, planned_.d_sinks);
    const auto take_all = [](NamedViews& made, const NamedViews& planned) {
      for (auto& [name, view] : made) {
        const auto found = planned.find(name);
        if (view.data == nullptr && found != planned.end()) view.dtype = found->second.dtype;
      }
    };
    take_all(tensors.d_captures, planned_.d_captures);
    take_all(tensors.d_params, planned_.d_params);
  }

  bool is_kept_;
  BackwardTensors planned_;  // its memory is not looked at
};

std::tuple<std::string, std::string, std::string> explain(const BackwardInputs& inputs, const Targets& targets,
                                                          const Arguments& arguments,
                                                          const std::optional<std::string>& gpu) {
  const AttentionOptions options = options_of(arguments);
  const BackwardTensors tensors = tensors_of(inputs, targets, options);
  const WithoutGil released;
  if (gpu) {
    const Explanation explanation = explain_on(*gpu, tensors, options);
    return {explanation.text, explanation.json, ""};
  }
  const AttentionPlan plan = cached_plan(tensors, options);
  return {plan.explain(), plan.explain_json(), picture_of(plan.block_mask())};
}

GradientReport check(const BackwardInputs& inputs, const Targets& gradients, const Arguments& arguments) {
  const AttentionOptions options = options_of(arguments);
  const BackwardTensors tensors = tensors_of(inputs, gradients, options);
  const WithoutGil released;
  return check_backward(tensors, options);
}

}  // namespace

void add_backward(nb::module_& module) {
  auto plan = nb::class_<BackwardPlan>(module, "BackwardPlan", "A backward planned once and run many times.");
  plan.def(nb::init<const BackwardInputs&, const Targets&, const Arguments&, bool>(), "inputs"_a, "targets"_a,
           "arguments"_a, "is_kept"_a)
      .def("run", &BackwardPlan::run, "inputs"_a, "targets"_a, "workspace"_a.none(), "stream"_a, "instead"_a.none());
  add_planned_call(plan);
  nb::class_<GradientReport>(module, "GradientReport", "Whether gradients are right, and by how much.")
      .def_ro("tensors", &GradientReport::tensors,
              "By the names \"dq\", \"dk\", \"dv\", \"d_sinks\", \"d_captures['NAME']\" and \"d_params['NAME']\".")
      .def_ro("passed", &GradientReport::passed, "Whether all of them are right.")
      .def("__str__", &GradientReport::text)
      .def("__repr__", &GradientReport::text)
      .def("__bool__", [](const GradientReport& self) { return self.passed; });
  module.def("attention_backward", &backward, "inputs"_a, "targets"_a, "arguments"_a);
  module.def("explain_backward", &explain, "inputs"_a, "targets"_a, "arguments"_a, "gpu"_a.none());
  module.def("check_backward", &check, "inputs"_a, "gradients"_a, "arguments"_a);
}

}  // namespace heddle::python
