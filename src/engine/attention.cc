// The one-call functions, on top of AttentionPlan.
#include "heddle/attention.h"

#include "problem/problem.h"

namespace heddle {

AttentionResult attention(const ConstTensorView& q, const ConstTensorView& k, const ConstTensorView& v,
                          const AttentionOptions& options, bool with_lse) {
  const problem::Outputs outputs = problem::outputs_of(q, k, v);
  AttentionTensors tensors = {q, k, v, TensorView(nullptr, outputs.o_dtype, outputs.o_shape), {}};
  if (with_lse) tensors.lse = TensorView(nullptr, outputs.lse_dtype, outputs.lse_shape);
  const AttentionPlan plan(tensors, options);

  AttentionResult result;
  result.o = Tensor::empty(outputs.o_dtype, outputs.o_shape);
  tensors.o = result.o;
  if (with_lse) {
    result.lse = Tensor::empty(outputs.lse_dtype, outputs.lse_shape);
    tensors.lse = result.lse;
  }
  plan.run(tensors);
  return result;
}

void attention_into(const ConstTensorView& q, const ConstTensorView& k, const ConstTensorView& v, const TensorView& o,
                    const std::optional<TensorView>& lse, const AttentionOptions& options) {
  const AttentionTensors tensors = {q, k, v, o, lse};
  AttentionPlan(tensors, options).run(tensors);
}

}  // namespace heddle
