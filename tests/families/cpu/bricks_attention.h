// Attention problems of bf16 that AMX, or its stand-in, computes.
#pragma once

#include <bit>
#include <cstdint>

#include "families/cpu/cpu_attention.h"
#include "families/cpu/emulated_amx.h"

namespace heddle {

inline void poke_bf16(const Tensor& x, const Dims& index, double value) {
  std::int64_t offset = 0;
  for (int axis = 0; axis < index.size(); ++axis) offset += index[axis] * x.view().strides[axis];
  ASSERT_EQ(x.dtype(), DType::bf16);
  const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(value));
  static_cast<std::uint16_t*>(x.data())[offset] = static_cast<std::uint16_t>(bits >> 16);
}

/// With an output of f32, which hides no error of the sums.
inline Attention of_bf16(const Shape& shape) {
  Attention a(shape, DType::bf16);
  a.o_dtype = DType::f32;
  return a;
}

/// o by that unit, on one thread.
inline Tensor output_by(device::MatrixUnit unit, const Attention& a) {
  const Tensor o = nan_tensor(a.o_dtype, a.o_shape());
  const AttentionTensors tensors = {a.q, a.k, a.v, o, {}};
  const problem::AttentionProblem problem = problem::validate(tensors, a.options);
  plan::Plan plan = plan::cpu_forward(problem, 1, cpu::cpu_caps());
  plan.part<plan::CpuForwardPart>().unit = unit;
  const Tensor workspace = Tensor::empty(DType::u8, {plan.workspace_bytes});
  cpu::prepare_forward({problem, plan, tensors, a.options, {}, nullptr})
      ->launch({tensors, &a.options, &a.options.bindings, nullptr, workspace.data()});
  return o;
}

/// The attention, which its plan computes with bricks.
inline void expect_bricks(const Attention& a) {
  const AttentionPlan plan({a.q, a.k, a.v, nan_tensor(a.o_dtype, a.o_shape()), {}}, a.options);
  ASSERT_THAT(plan.explain(), testing::HasSubstr("bf16 by AMX"));
  ASSERT_THAT(plan.explain_json(), testing::HasSubstr(R"("products": "bf16 by AMX")"));
  expect_plain(a);
  // Without lse, exponentials are coarser.
  Attention b = a;
  b.with_lse = false;
  expect_plain(b);
}

}  // namespace heddle
