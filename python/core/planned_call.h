// A call that is planned once and run many times: what heddle._core.AttentionPlan and BackwardPlan have in common.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "arguments.h"
#include "heddle/attention.h"
#include "shared_block_mask.h"
#include "tensors.h"
#include "workspaces.h"

namespace heddle::python {

/// The plan, and the arrays that its runs read.
class PlannedCall {
 public:
  explicit PlannedCall(const Arguments& arguments) : arguments_(arguments) {}
  PlannedCall(const PlannedCall&) = delete;
  PlannedCall& operator=(const PlannedCall&) = delete;
  /// The last copy of a plan waits on a GPU.
  ~PlannedCall() {
    const WithoutGil released;
    plan_.reset();
  }

  void update(const NamedValues& values) {
    {
      const Bindings bindings = bindings_of(values);
      const WithoutGil released;
      const std::scoped_lock held(changes_);
      plan_->update(bindings);
    }
    for (const auto& [name, array] : values.captures) arguments_.values.captures[name] = array;
    for (const auto& [name, value] : values.params) arguments_.values.params[name] = value;
  }

  Tensor workspace() const { return new_workspace(device_, plan_->workspace_bytes()); }
  std::optional<SharedBlockMask> block_mask() const {
    const WithoutGil released;
    const std::scoped_lock held(changes_);
    if (plan_->block_mask() == nullptr) return {};
    return SharedBlockMask{std::make_shared<const BlockMask>(*plan_->block_mask())};
  }
  const AttentionPlan& plan() const { return *plan_; }
  std::string explained(std::string (AttentionPlan::*form)() const) const {
    const WithoutGil released;
    const std::scoped_lock held(changes_);
    return (*plan_.*form)();
  }
  const Arguments& arguments() const { return arguments_; }

 protected:
  mutable std::recursive_mutex
      changes_;          // what an update changes is not read meanwhile, but by a listener to its events
  Arguments arguments_;  // the arrays that runs read, and the block mask
  std::optional<AttentionPlan> plan_;
  Device device_;
};

/// Adds to a class of Python what every plan has.
template <typename Plan>
void add_planned_call(nb::class_<Plan>& type) {
  using nb::literals::operator""_a;
  type.def(
          "update", [](Plan& self, const NamedValues& values) { self.update(values); }, "values"_a)
      .def("workspace", [](const Plan& self) { return self.workspace(); })
      .def_prop_ro("arguments", [](const Plan& self) { return Arguments(self.arguments()); })
      .def_prop_ro("workspace_bytes", [](const Plan& self) { return self.plan().workspace_bytes(); })
      .def_prop_ro("block_mask", [](const Plan& self) { return self.block_mask(); })
      .def_prop_ro("backend", [](const Plan& self) { return std::string(name(self.plan().backend())); })
      .def("explain", [](const Plan& self) { return self.explained(&AttentionPlan::explain); })
      .def("explain_json", [](const Plan& self) { return self.explained(&AttentionPlan::explain_json); });
}

}  // namespace heddle::python
