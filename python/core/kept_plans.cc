#include "kept_plans.h"

#include <nanobind/stl/optional.h>

#include <cstdint>
#include <optional>
#include <utility>

#include "arguments.h"
#include "call_tensors.h"
#include "heddle/attention.h"
#include "tensors.h"

namespace heddle::python {
namespace {

using namespace nb::literals;

/// The plan that heddle.attention would run, for runs with a workspace of the caller's: what a CUDA graph captures.
class KeptPlan {
 public:
  KeptPlan(const ReadOnly& q, const ReadOnly& k, const ReadOnly& v, const Array& o, const std::optional<Array>& lse,
           const Arguments& arguments, const GivenOut& max_scores, const GivenOut& lse_rest) {
    const AttentionTensors tensors = tensors_of(q, k, v, o, lse, false, max_scores, lse_rest);
    const AttentionOptions options = options_of(arguments);
    const WithoutGil released;
    plan_.emplace(cached_plan(tensors, options));
  }
  KeptPlan(const KeptPlan&) = delete;
  KeptPlan& operator=(const KeptPlan&) = delete;
  /// The last copy of a plan waits on a GPU.
  ~KeptPlan() {
    const WithoutGil released;
    plan_.reset();
  }

  std::int64_t workspace_bytes() const { return plan_->workspace_bytes(); }

  void run(const ReadOnly& q, const ReadOnly& k, const ReadOnly& v, const Array& o, const std::optional<Array>& lse,
           const Arguments& arguments, std::uintptr_t workspace, const GivenOut& max_scores,
           const GivenOut& lse_rest) const {
    const AttentionTensors tensors = tensors_of(q, k, v, o, lse, false, max_scores, lse_rest);
    const AttentionOptions options = options_of(arguments);
    const RunOptions run{.workspace = reinterpret_cast<void*>(workspace),
                         .bindings = &options.bindings,
                         .stream = options.stream,
                         .options = &options};
    const WithoutGil released;
    plan_->run(tensors, run);
  }

 private:
  std::optional<AttentionPlan> plan_;
};

}  // namespace

void add_kept_plans(nb::module_& module) {
  nb::class_<KeptPlan>(module, "KeptPlan", "The plan that a call would run, for runs with a workspace of one's own.")
      .def(nb::init<const ReadOnly&, const ReadOnly&, const ReadOnly&, const Array&, const std::optional<Array>&,
                    const Arguments&, const GivenOut&, const GivenOut&>(),
           "q"_a, "k"_a, "v"_a, "o"_a, "lse"_a.none(), "arguments"_a, "max_scores"_a.none() = nb::none(),
           "lse_rest"_a.none() = nb::none())
      .def_prop_ro("workspace_bytes", &KeptPlan::workspace_bytes)
      .def("run", &KeptPlan::run, "q"_a, "k"_a, "v"_a, "o"_a, "lse"_a.none(), "arguments"_a, "workspace"_a,
           "max_scores"_a.none() = nb::none(), "lse_rest"_a.none() = nb::none());
}

}  // namespace heddle::python
