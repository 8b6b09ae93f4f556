// Inputs of a backward on the CPU, and its results against the reference.
#pragma once

#include <gtest/gtest.h>

#include "families/cpu/cpu_attention.h"
#include "heddle/backward.h"
#include "heddle/check.h"

namespace heddle {

/// q, k, v, dO of normally distributed numbers, and the forward's results.
struct Training {
  Tensor q, k, v, d_o;
  AttentionOptions options;
  AttentionResult forward;

  explicit Training(const Shape& shape, DType dtype = DType::f32)
      : q(random_tensor(dtype, {shape.batch, shape.q_heads, shape.q_rows, shape.qk_dim}, 1)),
        k(random_tensor(dtype, {shape.batch, shape.kv_heads, shape.kv_rows, shape.qk_dim}, 2)),
        v(random_tensor(dtype, {shape.batch, shape.kv_heads, shape.kv_rows, shape.v_dim}, 3)),
        d_o(random_tensor(dtype, {shape.batch, shape.q_heads, shape.q_rows, shape.v_dim}, 4)) {
    options.backend = BackendChoice::cpu;
  }
  BackwardTensors inputs() {
    forward = attention(q, k, v, options, options.normalizer == Normalizer::softmax);
    BackwardTensors inputs{.q = q, .k = k, .v = v, .o = forward.o, .d_o = d_o};
    if (options.normalizer == Normalizer::softmax) inputs.lse = forward.lse;
    return inputs;
  }
};

inline void expect_right(Training& training, const GradientRequest& request = {}) {
  BackwardTensors tensors = training.inputs();
  const BackwardResult result = attention_backward(tensors, training.options, request);
  if (request.q) tensors.dq = result.dq;
  if (request.k) tensors.dk = result.dk;
  if (request.v) tensors.dv = result.dv;
  for (const auto& [name, tensor] : result.d_captures) tensors.d_captures[name] = tensor;
  const GradientReport report = check_backward(tensors, training.options);
  EXPECT_TRUE(report.passed) << report.text();
}

}  // namespace heddle
