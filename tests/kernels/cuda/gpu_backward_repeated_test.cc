// Backwards run again and again on a full GPU, where CTAs meet in every order: a write that others see too late is
// rare, and one run of a small case does not show it. Each run's gradients are compared with those of the first, or of
// another kernel.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "heddle/heddle.h"
#include "kernels/cuda/gpu_test.h"

namespace heddle::test {
namespace {

class GpuBackwardRepeated : public GpuTest {};

/// Normal numbers in bf16 on the device under test. The same ones come again after a million.
Tensor normal_there(const Dims& shape, unsigned seed) {
  Tensor pool = Tensor::empty(DType::f32, {1'000'003});
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::generate_n(static_cast<float*>(pool.data()), pool.count(), [&] { return normal(random); });
  const Tensor numbers = pool.to(DType::bf16);
  Tensor drawn = Tensor::empty(DType::bf16, shape);
  const auto* from = static_cast<const bf16*>(numbers.data());
  auto* const to = static_cast<bf16*>(drawn.data());
  for (std::int64_t i = 0; i < drawn.count(); ++i) to[i] = from[i % numbers.count()];
  return drawn.to(device_under_test());
}

bool same_bits(const Tensor& x, const Tensor& y) {
  return std::memcmp(x.data(), y.data(), static_cast<std::size_t>(x.count()) * sizeof(bf16)) == 0;
}

/// Elements that differ by more than another order of adds explains: two to four steps of bf16.
std::int64_t far_elements(const Tensor& x, const Tensor& y) {
  const auto *left = static_cast<const bf16*>(x.data()), *right = static_cast<const bf16*>(y.data());
  std::int64_t far = 0;
  for (std::int64_t i = 0; i < x.count(); ++i) {
    if (left[i].bits == right[i].bits) continue;  // nearly all
    const float a = to_f32(left[i]), b = to_f32(right[i]);
    far += !(std::abs(a - b) <= std::abs(a) / 64 + 1e-4F);
  }
  return far;
}

/// A call's tensors: heads of 512 queries and keys.
struct Call {
  Call(int dim, bool causal) {
    const int batch = is_reduced() ? 2 : 16;
    const Dims shape = {batch, 16, 512, dim};
    q = normal_there(shape, 1), k = normal_there(shape, 2), v = normal_there(shape, 3), d_o = normal_there(shape, 4);
    if (causal) options.mask_mod = mods::causal();
    AttentionResult forward = attention(q, k, v, options, true);
    o = std::move(forward.o), lse = std::move(forward.lse);
    for (Tensor* gradient : {&dq, &dk, &dv}) *gradient = Tensor::empty_on(device_under_test(), DType::bf16, shape);
  }
  BackwardTensors tensors() const {
    BackwardTensors all{.q = q, .k = k, .v = v, .o = o, .d_o = d_o};
    all.lse = lse;
    all.dq = dq.view(), all.dk = dk.view(), all.dv = dv.view();
    return all;
  }

  AttentionOptions options;
  Tensor q, k, v, d_o, o, lse, dq, dk, dv;
};

/// Runs a plan made now. `expected`: dq, dk and dv of another kernel's run, to whose dq all are compared; the first
/// run's where it is empty.
void run_again_and_again(const Call& call, int runs, std::vector<Tensor>& expected) {
  const AttentionPlan plan(call.tensors(), call.options);
  const Tensor workspace =
      Tensor::empty_on(device_under_test(), DType::u8, {static_cast<std::int64_t>(plan.workspace_bytes())});
  std::vector<Tensor> first;
  for (int run = 0; run < runs; ++run) {
    plan.run(call.tensors(), {.workspace = workspace.data()});
    std::vector<Tensor> now;
    for (const Tensor* gradient : {&call.dq, &call.dk, &call.dv}) now.push_back(gradient->to(Device{}));
    if (first.empty()) first = now;
    if (expected.empty()) expected = now;
    ASSERT_EQ(far_elements(expected[0], now[0]), 0) << "elements of dq, run " << run;
    EXPECT_TRUE(!call.options.deterministic || same_bits(first[0], now[0])) << "dq, run " << run;
    EXPECT_TRUE(same_bits(first[1], now[1])) << "dk, run " << run;
    EXPECT_TRUE(same_bits(first[2], now[2])) << "dv, run " << run;
  }
}

/// Runs of each plan. With 128 columns 5 runs of 33 were wrong on an H200 when the ring counted adds before others saw
/// them (S 2048).
int runs() { return is_reduced() ? 3 : 20; }

TEST_F(GpuBackwardRepeated, WithDqInARing) {
  for (const int dim : {64, 128}) {
    for (const bool causal : {false, true}) {
      SCOPED_TRACE(testing::Message() << "D " << dim << (causal ? ", causal" : ""));
      const Call call(dim, causal);
      const ScopedVariable family("HEDDLE_FAMILY", "backward_sm90");
      std::vector<Tensor> expected;
      {
        const ScopedVariable ring("HEDDLE_DQ_RING", "off");
        run_again_and_again(call, 2, expected);
      }
      const ScopedVariable ring("HEDDLE_DQ_RING", "on");
      run_again_and_again(call, runs(), expected);
    }
  }
}

TEST_F(GpuBackwardRepeated, Deterministic) {
  for (const int dim : {64, 128}) {
    SCOPED_TRACE(testing::Message() << "D " << dim);
    Call call(dim, true);
    const ScopedVariable family("HEDDLE_FAMILY", "backward_sm90");
    std::vector<Tensor> expected;
    run_again_and_again(call, 1, expected);
    call.options.deterministic = true;
    run_again_and_again(call, runs(), expected);
  }
}

// Pairs of CTAs exchange dS.
TEST_F(GpuBackwardRepeated, Wide) {
  for (const bool causal : {false, true}) {
    const Call call(256, causal);
    const ScopedVariable family("HEDDLE_FAMILY", "backward_sm90");
    std::vector<Tensor> expected;
    run_again_and_again(call, runs(), expected);
  }
}

TEST_F(GpuBackwardRepeated, Portable) {
  const Call call(128, true);
  const ScopedVariable family("HEDDLE_FAMILY", "backward_mma");
  std::vector<Tensor> expected;
  run_again_and_again(call, runs(), expected);
}

}  // namespace
}  // namespace heddle::test
