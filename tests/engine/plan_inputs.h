// PlanInputs of plans, and what their runs give.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <random>

#include "engine/attention_case.h"
#include "heddle/heddle.h"

namespace heddle::test {

inline Tensor drawn_tensor(DType dtype, const Dims& shape, std::uint64_t seed) {
  Tensor tensor = Tensor::empty(DType::f32, shape);
  std::mt19937_64 rng(seed);
  std::normal_distribution<float> normal;
  for (std::int64_t i = 0; i < tensor.count(); ++i) static_cast<float*>(tensor.data())[i] = normal(rng);
  return tensor.to(dtype);
}

inline Tensor nan_tensor(DType dtype, const Dims& shape) {
  Tensor tensor = Tensor::empty(dtype, shape);
  std::memset(tensor.data(), 0xff, static_cast<std::size_t>(tensor.count() * size_of(dtype)));
  return tensor;
}

inline bool equal_bits(const Tensor& x, const Tensor& y) {
  return x.dtype() == y.dtype() && x.shape() == y.shape() &&
         std::memcmp(x.data(), y.data(), static_cast<std::size_t>(x.count() * size_of(x.dtype()))) == 0;
}

// PlanInputs of one attention and the outputs of a run.
struct PlanInputs {
  Tensor q, k, v;
  AttentionOptions options;

  explicit PlanInputs(DType dtype = DType::f32, std::int64_t q_rows = 150, std::int64_t kv_rows = 130)
      : q(drawn_tensor(dtype, {2, 4, q_rows, 24}, 1)),
        k(drawn_tensor(dtype, {2, 2, kv_rows, 24}, 2)),
        v(drawn_tensor(dtype, {2, 2, kv_rows, 40}, 3)) {
    options.backend = backend_under_test();
  }
  Dims o_shape() const { return {2, 4, q.shape()[2], 40}; }
  Dims lse_shape() const { return {2, 4, q.shape()[2]}; }
};

struct PlanResult {
  Tensor o, lse;
  bool operator==(const PlanResult& other) const { return equal_bits(o, other.o) && equal_bits(lse, other.lse); }

  explicit PlanResult(const PlanInputs& in)
      : o(nan_tensor(DType::f32, in.o_shape())), lse(nan_tensor(DType::f32, in.lse_shape())) {}
  AttentionTensors tensors(const PlanInputs& in) const { return {in.q, in.k, in.v, o, lse.view()}; }
};

inline PlanResult run_plan(const AttentionPlan& plan, const PlanInputs& in, const Bindings* bindings = nullptr,
                           void* workspace = nullptr) {
  PlanResult run(in);
  plan.run(run.tensors(in), {.workspace = workspace, .bindings = bindings});
  return run;
}
inline AttentionPlan make_plan(const PlanInputs& in) { return {PlanResult(in).tensors(in), in.options}; }
inline PlanResult run_fresh(const PlanInputs& in) { return run_plan(make_plan(in), in); }

inline void expect_right(const PlanInputs& in, const PlanResult& run) {
  const CheckReport report = check_attention(in.q, in.k, in.v, in.options, run.o, run.lse);
  EXPECT_TRUE(report.passed) << report.text();
}

}  // namespace heddle::test
