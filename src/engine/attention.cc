// The one-call functions, on top of AttentionPlan.
#include "heddle/attention.h"

#include "problem/problem.h"

namespace heddle {
namespace {

// What a plan allocates on a GPU, its own lists and this workspace, is freed on return: the driver lets that wait for
// the run.
void plan_and_run(const AttentionPlan& plan, const AttentionTensors& tensors, const AttentionOptions& options) {
  RunOptions run = {.stream = options.stream};
  Tensor workspace;
  if (plan.workspace_bytes() > 0) {
    workspace = Tensor::empty_on(tensors.q.device, DType::u8, {plan.workspace_bytes()});
    run.workspace = workspace.data();
  }
  plan.run(tensors, run);
}

}  // namespace

AttentionResult attention(const ConstTensorView& q, const ConstTensorView& k, const ConstTensorView& v,
                          const AttentionOptions& options, bool with_lse) {
  const problem::Outputs outputs = problem::outputs_of(q, k, v, options.page_table.has_value());
  AttentionTensors tensors = {q, k, v, TensorView(nullptr, outputs.o_dtype, outputs.o_shape, q.device), {}};
  if (with_lse) tensors.lse = TensorView(nullptr, outputs.lse_dtype, outputs.lse_shape, q.device);
  const AttentionPlan plan(tensors, options);

  AttentionResult result;
  result.o = Tensor::empty_on(q.device, outputs.o_dtype, outputs.o_shape);
  tensors.o = result.o;
  if (with_lse) {
    result.lse = Tensor::empty_on(q.device, outputs.lse_dtype, outputs.lse_shape);
    tensors.lse = result.lse;
  }
  plan_and_run(plan, tensors, options);
  return result;
}

void attention_into(const ConstTensorView& q, const ConstTensorView& k, const ConstTensorView& v, const TensorView& o,
                    const std::optional<TensorView>& lse, const AttentionOptions& options) {
  const AttentionTensors tensors = {q, k, v, o, lse};
  plan_and_run(AttentionPlan(tensors, options), tensors, options);
}

}  // namespace heddle
