// The one-call functions, on top of the plan cache.
#include "heddle/attention.h"

#include "engine/one_call.h"
#include "engine/reports.h"
#include "problem/problem.h"

namespace heddle {
AttentionResult attention(const ConstTensorView& q, const ConstTensorView& k, const ConstTensorView& v,
                          const AttentionOptions& options, bool with_lse) {
  return engine::reported("call", [&] {
    const problem::Outputs outputs = problem::outputs_of(q, k, v, options);
    AttentionTensors tensors = {q, k, v, TensorView(nullptr, outputs.o_dtype, outputs.o_shape, q.device), {}};
    if (with_lse) tensors.lse = TensorView(nullptr, outputs.lse_dtype, outputs.lse_shape, q.device);
    engine::check_not_capturing(q.device, options.stream, "attention");
    const AttentionPlan plan = cached_plan(tensors, options);

    AttentionResult result;
    result.o = Tensor::empty_on(q.device, outputs.o_dtype, outputs.o_shape);
    tensors.o = result.o;
    if (with_lse) {
      result.lse = Tensor::empty_on(q.device, outputs.lse_dtype, outputs.lse_shape);
      tensors.lse = result.lse;
    }
    engine::run_kept(plan, tensors, options);
    return result;
  });
}

void attention_into(const ConstTensorView& q, const ConstTensorView& k, const ConstTensorView& v, const TensorView& o,
                    const std::optional<TensorView>& lse, const AttentionOptions& options) {
  attention_into(AttentionTensors{q, k, v, o, lse, {}}, options);
}

void attention_into(const AttentionTensors& tensors, const AttentionOptions& options) {
  return engine::reported("call", [&] {
    engine::check_not_capturing(tensors.q.device, options.stream, "attention");
    const AttentionPlan plan = cached_plan(tensors, options);
    engine::run_kept(plan, tensors, options);
  });
}

}  // namespace heddle
