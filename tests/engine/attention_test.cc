// heddle::attention: outputs, backends, empty calls and progress.
#include <gtest/gtest.h>

#include <cmath>
#include <stdexcept>

#include "engine/plan_inputs.h"
#include "expect_error.h"
#include "heddle/devices.h"
#include "heddle/mods.h"

namespace heddle::test {
namespace {

using testing::HasSubstr;

TEST(Attention, AllocatesItsOutputs) {
  for (const auto& [dtype, o_dtype, lse_dtype] :
       {std::tuple(DType::f64, DType::f64, DType::f64), std::tuple(DType::f32, DType::f32, DType::f32),
        std::tuple(DType::f16, DType::f16, DType::f32), std::tuple(DType::e5m2, DType::bf16, DType::f32)}) {
    const PlanInputs in(dtype);
    const AttentionResult result = attention(in.q, in.k, in.v, in.options, true);
    EXPECT_EQ(result.o.dtype(), o_dtype);
    EXPECT_EQ(result.o.shape(), in.o_shape());
    EXPECT_EQ(result.lse.dtype(), lse_dtype);
    EXPECT_EQ(result.lse.shape(), in.lse_shape());
    EXPECT_EQ(attention(in.q, in.k, in.v, in.options).lse.count(), 0);
  }
}

TEST(Attention, TakesTheCpuBackendByDefault) {
  PlanInputs in;
  in.options.backend = BackendChoice::automatic;
  EXPECT_EQ(make_plan(in).backend(), BackendChoice::cpu);
  in.options.backend = BackendChoice::reference;
  EXPECT_EQ(make_plan(in).backend(), BackendChoice::reference);
  expect_right(in, run_fresh(in));
  EXPECT_EQ(name(BackendChoice::automatic), "automatic");
  EXPECT_EQ(name(BackendChoice::cpu), "cpu");
  EXPECT_EQ(name(BackendChoice::reference), "reference");
}

TEST(Attention, DoesNothingForEmptyBatchesAndHeads) {
  const Tensor sinks = Tensor::zeros(DType::f32, {0});
  for (const auto& [q_shape, kv_heads] : {std::pair{Dims{0, 4, 5, 8}, 2},
                                          {Dims{1, 0, 5, 8}, 2},
                                          {Dims{1, 4, 0, 8}, 2},
                                          {Dims{1, 0, 5, 8}, 0},
                                          {Dims{3, 0, 200, 8}, 0}}) {
    const Tensor q = Tensor::zeros(DType::f32, q_shape), kv = Tensor::zeros(DType::f32, {1, kv_heads, 7, 8});
    for (const Expr& mask : {Expr(), mods::causal(), leaf::kv_idx() < leaf::h()}) {
      for (const BackendChoice backend : {BackendChoice::cpu, BackendChoice::reference}) {
        AttentionOptions options;
        options.backend = backend;
        options.mask_mod = mask;
        if (q_shape[1] == 0) options.sinks = sinks;
        const AttentionResult result = attention(q, kv, kv, options, true);
        EXPECT_EQ(result.o.shape(), q_shape);
        EXPECT_EQ(result.lse.shape(), (Dims{q_shape[0], q_shape[1], q_shape[2]}));
        EXPECT_EQ(result.o.count() + result.lse.count(), 0);
      }
    }
  }
}

TEST(Attention, TakesSequencesThatStartBeforeTheirKeys) {
  PlanInputs in;  // 150 queries, 130 keys
  const Tensor starts = Tensor::zeros(DType::i32, {2});
  for (int i = 0; i < 2; ++i) static_cast<std::int32_t*>(starts.data())[i] = 130 - 150;
  in.options.q_start = starts;
  in.options.mask_mod = mods::causal();
  const PlanResult shifted = run_fresh(in);
  expect_right(in, shifted);
  EXPECT_EQ(get_element(shifted.lse, {1, 3, 19}), -INFINITY);  // the first 20 queries come before all keys
  EXPECT_GT(get_element(shifted.lse, {1, 3, 20}), -INFINITY);
  in.options.q_start.reset();
  in.options.mask_mod = mods::causal_lower_right();
  EXPECT_EQ(run_fresh(in), shifted);
}

// A short run may be over before there is anything to say; the reference says something after each of its tasks.
TEST(Attention, ReportsProgressUpToOne) {
  PlanInputs in;
  for (const BackendChoice backend : {BackendChoice::cpu, BackendChoice::reference}) {
    std::vector<double> fractions;
    in.options.backend = backend;
    in.options.progress = [&](double fraction) { fractions.push_back(fraction); };
    run_fresh(in);
    EXPECT_TRUE(std::is_sorted(fractions.begin(), fractions.end()));
    for (double fraction : fractions) EXPECT_TRUE(fraction > 0 && fraction <= 1) << fraction;
    if (backend == BackendChoice::reference) {
      ASSERT_FALSE(fractions.empty());
      EXPECT_EQ(fractions.back(), 1);
    }
  }
}

// The reference reports each task; the CPU, not before 50 ms.
TEST(Attention, ProgressMayCallAttention) {
  for (const int threads : {1, 2, 4}) {
    PlanInputs in;
    in.options.backend = BackendChoice::reference;
    in.options.threads = threads;
    const AttentionResult alone = attention(in.q, in.k, in.v, in.options);
    int calls = 0;
    AttentionOptions calling = in.options;
    calling.progress = [&](double) {
      if (++calls > 3) return;
      in.options.backend = calls % 2 == 0 ? BackendChoice::reference : BackendChoice::cpu;
      const AttentionResult within = attention(in.q, in.k, in.v, in.options);
      EXPECT_TRUE(calls % 2 == 1 || equal_bits(within.o, alone.o));
      clear_plan_cache();
    };
    EXPECT_TRUE(equal_bits(attention(in.q, in.k, in.v, calling).o, alone.o));
    EXPECT_GT(calls, 2);
  }
}

TEST(Attention, WhatProgressThrowsEndsTheRun) {
  for (const int threads : {1, 2, 4}) {
    PlanInputs in;
    in.options.backend = BackendChoice::reference;
    in.options.threads = threads;
    const AttentionResult alone = attention(in.q, in.k, in.v, in.options);
    AttentionOptions throwing = in.options;
    throwing.progress = [](double) { throw std::out_of_range("enough"); };
    EXPECT_THROW(attention(in.q, in.k, in.v, throwing), std::out_of_range);
    EXPECT_TRUE(equal_bits(attention(in.q, in.k, in.v, in.options).o, alone.o));
  }
}

TEST(Devices, NameTheCpuAndTheVersion) {
  const std::vector<DeviceInfo> found = devices();
  ASSERT_FALSE(found.empty());
  EXPECT_EQ(found[0].kind, "cpu");
  EXPECT_FALSE(found[0].name.empty());
  EXPECT_THAT(found[0].detail,
              testing::ContainsRegex("[A-Z0-9]+, [0-9]+ floats a vector, [0-9]+ cores, L1 [0-9]+ KiB"));
  EXPECT_GT(found[0].memory_bytes, 1 << 20);
  EXPECT_THAT(version(), testing::ContainsRegex("^[0-9]+\\.[0-9]+\\.[0-9]+$"));
}

}  // namespace
}  // namespace heddle::test
