// The one-call functions, on top of the plan cache.
#include "heddle/attention.h"

#include <fmt/format.h>

#include "backend/device.h"
#include "engine/plan_cache.h"
#include "engine/workspaces.h"
#include "heddle/error.h"
#include "problem/problem.h"

namespace heddle {
namespace {

/// A graph that records the run would read the plan's lists and the workspace long after both may have gone.
void check_not_capturing(const Device& device, void* stream) {
  const backend::DeviceInterface* kind = backend::find_device_kind(device.kind);
  if (device.kind == DeviceKind::cpu || kind == nullptr) return;
  // A device that is not there is the planner's to refuse.
  if (device.index < 0 || device.index >= kind->count() || !kind->is_capturing(device.index, stream)) return;
  throw Error(
      ErrorCode::invalid_argument,
      fmt::format("stream {} is being captured in a graph; attention() keeps neither its plan nor its workspace "
                  "for one: the run of an AttentionPlan is accepted",
                  fmt::ptr(stream)));
}

void run(const AttentionPlan& plan, const AttentionTensors& tensors, const AttentionOptions& options) {
  const engine::Workspaces::Lease workspace(engine::workspaces(), tensors.q.device, options.stream,
                                            plan.workspace_bytes());
  engine::PlanCache::run(plan, tensors, {.workspace = workspace.data(), .stream = options.stream, .options = &options});
}

}  // namespace

AttentionResult attention(const ConstTensorView& q, const ConstTensorView& k, const ConstTensorView& v,
                          const AttentionOptions& options, bool with_lse) {
  const problem::Outputs outputs = problem::outputs_of(q, k, v, options.page_table.has_value());
  AttentionTensors tensors = {q, k, v, TensorView(nullptr, outputs.o_dtype, outputs.o_shape, q.device), {}};
  if (with_lse) tensors.lse = TensorView(nullptr, outputs.lse_dtype, outputs.lse_shape, q.device);
  check_not_capturing(q.device, options.stream);
  const AttentionPlan plan = engine::plan_cache().plan(tensors, options);

  AttentionResult result;
  result.o = Tensor::empty_on(q.device, outputs.o_dtype, outputs.o_shape);
  tensors.o = result.o;
  if (with_lse) {
    result.lse = Tensor::empty_on(q.device, outputs.lse_dtype, outputs.lse_shape);
    tensors.lse = result.lse;
  }
  run(plan, tensors, options);
  return result;
}

void attention_into(const ConstTensorView& q, const ConstTensorView& k, const ConstTensorView& v, const TensorView& o,
                    const std::optional<TensorView>& lse, const AttentionOptions& options) {
  const AttentionTensors tensors = {q, k, v, o, lse};
  check_not_capturing(q.device, options.stream);
  const AttentionPlan plan = engine::plan_cache().plan(tensors, options);
  run(plan, tensors, options);
}

}  // namespace heddle
