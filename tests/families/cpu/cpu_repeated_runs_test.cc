// Runs of one plan on the CPU: after the first they allocate nothing, and each takes its own values.
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "count_allocations.h"
#include "families/cpu/cpu_training.h"

namespace heddle {
namespace {

struct Mods {
  std::string name;
  std::function<void(AttentionOptions&, DType)> set;
};

constexpr float kNumbers[] = {0.5F, -0.25F, 0.125F, 1.0F};
constexpr double kWideNumbers[] = {0.5, -0.25, 0.125, 1.0};

std::vector<Mods> all_mods() {
  const auto slopes = [](AttentionOptions& options, DType) {
    options.score_mod = mods::alibi(Capture("slopes", DType::f32, 1));
    options.bindings.captures["slopes"] = ConstTensorView(kNumbers, DType::f32, Dims{4});
  };
  const auto dropout = [](AttentionOptions& options, DType) {
    options.weight_mod = mods::dropout(0.1, param("seed", ExprType::i32));
    options.bindings.params["seed"] = std::int32_t{7};
  };
  const auto sinks = [](AttentionOptions& options, DType dtype) {
    options.sinks = dtype == DType::f64 ? ConstTensorView(kWideNumbers, DType::f64, Dims{4})
                                        : ConstTensorView(kNumbers, DType::f32, Dims{4});
  };
  return {{"none", [](AttentionOptions&, DType) {}},
          {"causal", [](AttentionOptions& options, DType) { options.mask_mod = mods::causal(); }},
          {"softcap", [](AttentionOptions& options, DType) { options.score_mod = mods::softcap(20); }},
          {"window", [](AttentionOptions& options, DType) { options.mask_mod = mods::sliding_window(30); }},
          {"slopes", slopes},
          {"dropout", dropout},
          {"sinks", sinks}};
}

/// Runs twice; then what ten more runs allocate.
template <class Tensors>
std::int64_t allocations_of_runs(const Tensors& tensors, const AttentionOptions& options) {
  const AttentionPlan plan(tensors, options);
  std::vector<std::byte> workspace(plan.workspace_bytes() + 64);
  void* at = workspace.data();
  std::size_t room = workspace.size();
  const RunOptions run{.workspace = std::align(64, plan.workspace_bytes(), at, room)};
  for (int i = 0; i < 2; ++i) plan.run(tensors, run);
  return test::allocations_of([&] {
    for (int i = 0; i < 10; ++i) plan.run(tensors, run);
  });
}

// On one thread, since on several a worker may get its first masked tile in any run.
TEST(CpuRepeatedRuns, AllocateNothing) {
  const std::vector<Shape> shapes = {{2, 4, 2, 70, 200, 64, 64}, {1, 4, 4, 16, 16, 32, 48}, {3, 4, 1, 1, 300, 64, 64}};
  for (const DType dtype : {DType::f32, DType::bf16, DType::f64}) {
    for (const Shape& shape : shapes) {
      for (const Mods& mods : all_mods()) {
        SCOPED_TRACE(testing::Message() << name(dtype) << ", " << shape.q_rows << " queries, " << mods.name);
        Training training(shape, dtype);
        training.options.threads = 1;
        mods.set(training.options, dtype);
        BackwardTensors tensors = training.inputs();
        const Tensor o = Tensor::empty(dtype, training.forward.o.view().shape);
        AttentionTensors forward{.q = training.q, .k = training.k, .v = training.v, .o = o.view()};
        forward.lse = training.forward.lse.view();
        EXPECT_EQ(allocations_of_runs(forward, training.options), 0) << "forward";
        const Tensor dq = Tensor::empty(dtype, training.q.view().shape),
                     dk = Tensor::empty(dtype, training.k.view().shape),
                     dv = Tensor::empty(dtype, training.v.view().shape), d_slopes = Tensor::empty(DType::f32, {4});
        tensors.dq = dq.view(), tensors.dk = dk.view(), tensors.dv = dv.view();
        if (mods.name == "slopes") tensors.d_captures["slopes"] = d_slopes.view();
        EXPECT_EQ(allocations_of_runs(tensors, training.options), 0) << "backward";
      }
    }
  }
}

/// A forward whose score has two params, and adds a captured number a key.
struct Bound {
  Training training{{1, 2, 2, 60, 90, 32, 32}};
  AttentionTensors tensors;
  Tensor o, bias, strided;

  Bound() : bias(random_tensor(DType::f32, {90}, 9)), strided(random_tensor(DType::f32, {180}, 10)) {
    const Expr near = abs(leaf::q_idx() - leaf::kv_idx()) <= param("reach", ExprType::i32);
    training.options.mask_mod = mods::causal();
    training.options.score_mod = leaf::score() * param("factor", ExprType::f32) + where(near, 0.0, -1.0) +
                                 Capture("bias", DType::f32, 1)(leaf::kv_idx());
    training.options.bindings = bindings(0);
    o = Tensor::empty(DType::f32, {1, 2, 60, 32});
    tensors = {.q = training.q, .k = training.k, .v = training.v, .o = o.view()};
  }
  /// The values of a run, `number` of them.
  Bindings bindings(int number) const {
    Bindings values;
    values.params["reach"] = std::int32_t{5 + 9 * number};
    values.params["factor"] = 1.0 - 0.25 * number;
    values.captures["bias"] =
        number % 2 == 0 ? bias.view() : ConstTensorView(strided.data(), DType::f32, Dims{90}, Dims{2});
    return values;
  }
};

TEST(CpuRepeatedRuns, TakeEachItsOwnValues) {
  Bound bound;
  std::vector<std::vector<std::byte>> expected;
  for (int number = 0; number < 3; ++number) {
    AttentionOptions options = bound.training.options;
    options.bindings = bound.bindings(number);
    expected.push_back(bytes_of(attention(bound.training.q, bound.training.k, bound.training.v, options).o));
  }
  EXPECT_NE(expected[0], expected[1]);
  EXPECT_NE(expected[0], expected[2]);
  const AttentionPlan plan(bound.tensors, bound.training.options);
  const Tensor workspace = Tensor::empty(DType::u8, {static_cast<std::int64_t>(plan.workspace_bytes()) + 1});
  for (const int number : {0, 1, 2, 0, 2, 1}) {
    const Bindings values = bound.bindings(number);
    plan.run(bound.tensors, {.workspace = workspace.data(), .bindings = &values});
    EXPECT_EQ(bytes_of(bound.o), expected[static_cast<std::size_t>(number)]) << "run with values " << number;
  }
  // A run without a value is refused, and leaves the plan as it was.
  EXPECT_THROW(
      {
        const Bindings none;
        plan.run(bound.tensors, {.workspace = workspace.data(), .bindings = &none});
      },
      Error);
  const Bindings values = bound.bindings(1);
  plan.run(bound.tensors, {.workspace = workspace.data(), .bindings = &values});
  EXPECT_EQ(bytes_of(bound.o), expected[1]);
}

/// Bytes that the cache of plans counts for a forward and for its backward on so many threads.
std::vector<std::int64_t> cached_bytes(const Shape& shape, int threads) {
  Training training(shape);
  training.options.mask_mod = mods::causal();
  training.options.threads = threads;
  clear_plan_cache();
  BackwardTensors tensors = training.inputs();
  const std::int64_t forward = plan_cache_counts().bytes;
  attention_backward(tensors, training.options);
  return {forward, plan_cache_counts().bytes - forward};
}

// Plans of many threads count what the runs have workers for, and so do not drive others out of the cache.
TEST(CpuRepeatedRuns, AreCountedByTheirWorkers) {
  const Shape small{1, 2, 2, 8, 8, 16, 16}, large{1, 2, 2, 256, 256, 64, 64};
  const std::vector<std::int64_t> one = cached_bytes(small, 1), few = cached_bytes(large, 64);
  EXPECT_GT(one[0], 0);
  EXPECT_GT(one[1], 0);
  EXPECT_EQ(cached_bytes(small, 1000), one) << "one worker computes it, whatever the threads are";
  EXPECT_EQ(cached_bytes(large, 1000), few) << "there are fewer tasks than threads";
  clear_plan_cache();
}

}  // namespace
}  // namespace heddle
