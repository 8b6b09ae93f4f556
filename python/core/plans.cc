#include "plans.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "arguments.h"
#include "call_tensors.h"
#include "heddle/attention.h"
#include "planned_call.h"
#include "shared_block_mask.h"
#include "tensors.h"
#include "workspaces.h"

namespace heddle::python {
namespace {

using namespace nb::literals;

/// Where the results of a run go: the caller's arrays, or new tensors.
class Results {
 public:
  Results(AttentionTensors& tensors, const GivenOut& o, const GivenOut& lse) {
    if (!o) {
      o_ = Tensor::empty_on(tensors.o.device, tensors.o.dtype, tensors.o.shape);
      tensors.o = *o_;
    }
    if (!lse && tensors.lse) {
      lse_ = Tensor::empty_on(tensors.lse->device, tensors.lse->dtype, tensors.lse->shape);
      tensors.lse = *lse_;
    }
  }
  /// (o, lse), None for the caller's.
  Pair to_python() const { return pair_of(to_object(o_), to_object(lse_)); }

 private:
  static nb::object to_object(const std::optional<Tensor>& tensor) {
    return tensor ? nb::object(python::to_python(*tensor)) : nb::none();
  }

  std::optional<Tensor> o_, lse_;
};

/// heddle._core.AttentionPlan: the plan, and what its runs read.
class Plan : public PlannedCall {
 public:
  Plan(const ReadOnly& q, const ReadOnly& k, const ReadOnly& v, const GivenOut& o, const GivenOut& lse, bool with_lse,
       const Arguments& arguments)
      : PlannedCall(arguments) {
    const AttentionTensors tensors = tensors_of(q, k, v, o, lse, with_lse);
    const AttentionOptions options = options_of(arguments_);
    device_ = tensors.q.device;
    o_dtype_ = tensors.o.dtype;
    with_lse_ = tensors.lse.has_value();
    const WithoutGil released;
    plan_.emplace(tensors, options);
  }

  Pair run(const ReadOnly& q, const ReadOnly& k, const ReadOnly& v, const GivenOut& o, const GivenOut& lse,
           const GivenOut& workspace, std::uintptr_t stream, const Arguments* instead) const {
    AttentionTensors tensors = tensors_of(q, k, v, o, lse, with_lse_);
    if (!o) tensors.o.dtype = o_dtype_;
    std::optional<AttentionOptions> options;
    if (instead != nullptr) options = options_of(*instead);
    const RunOptions run{.workspace = workspace_of(workspace, device_, plan_->workspace_bytes()),
                         .stream = reinterpret_cast<void*>(stream),
                         .options = options ? &*options : nullptr};
    const Results results(tensors, o, lse);
    {
      const WithoutGil released;
      plan_->run(tensors, run);
    }
    return results.to_python();
  }

 private:
  DType o_dtype_ = DType::f32;
  bool with_lse_ = false;
};

using Texts = std::pair<std::string, std::string>;

std::tuple<std::string, std::string, std::string> explain(const ReadOnly& q, const ReadOnly& k, const ReadOnly& v,
                                                          const GivenOut& o, const GivenOut& lse, bool with_lse,
                                                          const Arguments& arguments) {
  const AttentionTensors tensors = tensors_of(q, k, v, o, lse, with_lse);
  const AttentionOptions options = options_of(arguments);
  const WithoutGil released;
  const AttentionPlan plan = cached_plan(tensors, options);
  return {plan.explain(), plan.explain_json(), picture_of(plan.block_mask())};
}

Texts explained_on(const std::string& gpu, const ReadOnly& q, const ReadOnly& k, const ReadOnly& v, const GivenOut& o,
                   const GivenOut& lse, bool with_lse, const Arguments& arguments) {
  const AttentionTensors tensors = tensors_of(q, k, v, o, lse, with_lse);
  const AttentionOptions options = options_of(arguments);
  const WithoutGil released;
  const Explanation explanation = explain_on(gpu, tensors, options);
  return {explanation.text, explanation.json};
}

std::vector<ConstTensorView> views_of(const std::vector<ReadOnly>& arrays, const char* name) {
  std::vector<ConstTensorView> views;
  for (std::size_t i = 0; i < arrays.size(); ++i) {
    views.push_back(const_view_of(arrays[i], (std::string(name) + "[" + std::to_string(i) + "]").c_str()));
  }
  return views;
}

Pair merge(const std::vector<ReadOnly>& o_parts, const std::vector<ReadOnly>& lse_parts, const GivenOut& o,
           const GivenOut& lse, bool with_lse, std::uintptr_t stream) {
  const std::vector<ConstTensorView> o_views = views_of(o_parts, "o_parts"),
                                     lse_views = views_of(lse_parts, "lse_parts");
  AttentionTensors tensors;
  if (o) {
    tensors.o = view_of(*o, "out");
  } else if (!o_views.empty()) {
    tensors.o = TensorView(nullptr, o_views[0].dtype, o_views[0].shape, o_views[0].device);
  }
  if (lse) {
    tensors.lse = view_of(*lse, "lse");
  } else if (with_lse && !lse_views.empty()) {
    tensors.lse = TensorView(nullptr, lse_views[0].dtype, lse_views[0].shape, lse_views[0].device);
  }
  const Results results(tensors, o, lse);
  {
    const WithoutGil released;
    merge_states(o_views, lse_views, tensors.o, tensors.lse, reinterpret_cast<void*>(stream));
  }
  return results.to_python();
}

}  // namespace

void add_plans(nb::module_& module) {
  auto plan = nb::class_<Plan>(module, "AttentionPlan", "An attention planned once and run many times.");
  plan.def(nb::init<const ReadOnly&, const ReadOnly&, const ReadOnly&, const GivenOut&, const GivenOut&, bool,
                    const Arguments&>(),
           "q"_a, "k"_a, "v"_a, "o"_a.none(), "lse"_a.none(), "with_lse"_a, "arguments"_a)
      .def("run", &Plan::run, "q"_a, "k"_a, "v"_a, "o"_a.none(), "lse"_a.none(), "workspace"_a.none(), "stream"_a,
           "instead"_a.none());
  add_planned_call(plan);
  module.def("explain", &explain, "q"_a, "k"_a, "v"_a, "o"_a.none(), "lse"_a.none(), "with_lse"_a, "arguments"_a);
  module.def("explain_on", &explained_on, "gpu"_a, "q"_a, "k"_a, "v"_a, "o"_a.none(), "lse"_a.none(), "with_lse"_a,
             "arguments"_a);  // without a picture: what is not here has no block mask
  module.def("merge_states", &merge, "o_parts"_a, "lse_parts"_a, "o"_a.none(), "lse"_a.none(), "with_lse"_a,
             "stream"_a);
}

}  // namespace heddle::python
