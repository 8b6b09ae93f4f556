// AttentionPlan: made once, run many times, with other values, threads, workspaces and outputs.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <thread>

#include "engine/plan_inputs.h"
#include "expect_error.h"
#include "heddle/devices.h"
#include "heddle/mods.h"

namespace heddle::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(Plan, RunsManyTimes) {
  PlanInputs in;
  in.options.mask_mod = mods::causal();
  const AttentionPlan plan = make_plan(in);
  const PlanResult first = run_plan(plan, in);
  expect_right(in, first);
  EXPECT_EQ(run_plan(plan, in), first);
  in.q = drawn_tensor(DType::f32, in.q.shape(), 9);  // other memory of the same shape
  const PlanResult other = run_plan(plan, in);
  EXPECT_FALSE(other == first);
  expect_right(in, other);
}

TEST(Plan, ThatWasMovedFromIsToldApart) {
  const PlanInputs in;
  AttentionPlan from = make_plan(in);
  AttentionPlan plan = std::move(from);
  const std::string sentence = "the plan was moved from; the plan that it was moved to is accepted";
  const std::vector<std::function<void()>> uses = {
      [&] { run_plan(from, in); },     [&] { from.run(BackwardTensors{}); }, [&] { from.update({}); },
      [&] { from.workspace_bytes(); }, [&] { from.block_mask(); },           [&] { from.backend(); },
      [&] { (void)from.explain(); },   [&] { (void)from.explain_json(); },
  };
  for (const auto& use : uses) expect_error(use, ErrorCode::invalid_argument, sentence);
  expect_right(in, run_plan(plan, in));
  from = plan;
  expect_right(in, run_plan(from, in));
}

TEST(Plan, NeedsNoMemoryToBeMade) {
  PlanInputs in;
  const AttentionTensors shapes = {{nullptr, DType::f32, in.q.shape()},
                                   {nullptr, DType::f32, in.k.shape()},
                                   {nullptr, DType::f32, in.v.shape()},
                                   {nullptr, DType::f32, in.o_shape()},
                                   TensorView(nullptr, DType::f32, in.lse_shape())};
  const AttentionPlan plan(shapes, in.options);
  expect_right(in, run_plan(plan, in));
  expect_error([&] { plan.run(shapes); }, ErrorCode::invalid_argument, "q is f32 [2, 4, 150, 24] but its data is null");
}

TEST(Plan, GivesTheSameBitsForAnyNumberOfThreads) {
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::e4m3}) {
    PlanInputs in(dtype, 201, 333);
    in.options.mask_mod = mods::sliding_window(70, 30);
    in.options.score_mod = mods::softcap(3);
    in.options.threads = 1;
    const AttentionResult serial = attention(in.q, in.k, in.v, in.options, true);
    for (const int threads : {2, 3, 7}) {
      in.options.threads = threads;
      const AttentionResult parallel = attention(in.q, in.k, in.v, in.options, true);
      EXPECT_TRUE(equal_bits(parallel.o, serial.o)) << name(dtype) << ' ' << threads;
      EXPECT_TRUE(equal_bits(parallel.lse, serial.lse)) << name(dtype) << ' ' << threads;
    }
  }
}

TEST(Plan, RunsOnTwoThreadsAtOnce) {
  PlanInputs in;
  in.options.mask_mod = mods::causal_lower_right();
  in.options.threads = 2;
  const AttentionPlan plan = make_plan(in);
  const PlanResult expected = run_plan(plan, in);
  bool equal[2] = {false, false};
  const auto repeat = [&](int thread) {
    const Tensor workspace = Tensor::empty(DType::u8, {plan.workspace_bytes()});
    equal[thread] = true;
    for (int i = 0; i < 10; ++i) {
      equal[thread] = equal[thread] && run_plan(plan, in, nullptr, workspace.data()) == expected;
    }
  };
  std::thread other(repeat, 1);
  repeat(0);
  other.join();
  EXPECT_TRUE(equal[0]);
  EXPECT_TRUE(equal[1]);
}

TEST(Plan, TakesAWorkspaceOrAllocatesIt) {
  const PlanInputs in;
  const AttentionPlan plan = make_plan(in);
  const PlanResult own = run_plan(plan, in);
  const Tensor workspace = nan_tensor(DType::u8, {plan.workspace_bytes() + 64});
  EXPECT_EQ(run_plan(plan, in, nullptr, workspace.data()), own);
  const auto* behind = static_cast<const std::byte*>(workspace.data()) + plan.workspace_bytes();
  for (int i = 0; i < 64; ++i) EXPECT_EQ(behind[i], std::byte{0xff});
  expect_error([&] { run_plan(plan, in, nullptr, static_cast<std::byte*>(workspace.data()) + 8); },
               ErrorCode::invalid_argument, HasSubstr("an address that 64 divides is accepted"));
}

TEST(Plan, RunsWithOtherScoreParams) {
  PlanInputs in;
  in.options.score_mod = leaf::score() * param("temperature", ExprType::f32);
  in.options.bindings.params["temperature"] = 1.0;
  const AttentionPlan plan = make_plan(in);
  const PlanResult one = run_plan(plan, in);
  PlanInputs hotter = in;
  hotter.options.bindings.params["temperature"] = 3.0;
  const PlanResult three = run_plan(plan, in, &hotter.options.bindings);
  EXPECT_FALSE(three == one);
  EXPECT_EQ(three, run_fresh(hotter));
  expect_right(hotter, three);
  const Bindings nothing;
  expect_error([&] { run_plan(plan, in, &nothing); }, ErrorCode::invalid_argument,
               "param 'temperature' was given no value");
}

TEST(Plan, ReadsScoreCapturesOfEachRun) {
  PlanInputs in;
  const Tensor slopes = mods::alibi_slopes(4);
  in.options.score_mod = mods::alibi(Capture("slopes", DType::f32, 1));
  in.options.bindings.captures["slopes"] = slopes;
  const AttentionPlan plan = make_plan(in);
  const PlanResult before = run_plan(plan, in);
  static_cast<float*>(slopes.data())[1] = 2;
  const PlanResult after = run_plan(plan, in);
  EXPECT_FALSE(after == before);
  expect_right(in, after);
}

TEST(Plan, ProvesIndicesAgainForEveryRun) {
  PlanInputs in;
  const Capture weights("weights", DType::f32, 1), table("table", DType::i32, 1);
  const Tensor values = drawn_tensor(DType::f32, {160}, 4), order = Tensor::zeros(DType::i32, {130});
  in.options.weight_mod = weights(leaf::q_idx() + param("shift", ExprType::i32)) * weights(table(leaf::kv_idx()));
  in.options.bindings = {.captures = {{"weights", values}, {"table", order}}, .params = {{"shift", 10}}};
  const AttentionPlan plan = make_plan(in);
  expect_right(in, run_plan(plan, in));

  Bindings shifted = in.options.bindings;
  shifted.params["shift"] = 11;
  expect_error([&] { run_plan(plan, in, &shifted); }, ErrorCode::invalid_argument,
               HasSubstr("outside the tensor's extent of 160"));
  static_cast<std::int32_t*>(order.data())[129] = 160;
  expect_error([&] { run_plan(plan, in); }, ErrorCode::invalid_argument,
               HasSubstr("outside the tensor's extent of 160"));
}

TEST(Plan, ChecksEachRunBeforeItWrites) {
  const PlanInputs in;
  const AttentionPlan plan = make_plan(in);
  const PlanResult run(in);
  AttentionTensors tensors = run.tensors(in);
  tensors.lse->data = tensors.o.data;
  expect_error([&] { plan.run(tensors); }, ErrorCode::invalid_argument,
               "o overlaps lse in memory; outputs that share no byte are accepted");
  EXPECT_EQ(run, PlanResult(in));  // still NaN
}

TEST(Plan, WritesAnyLayoutAndFloatingType) {
  const PlanInputs in;
  const PlanResult plain = run_fresh(in);
  for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16, DType::e4m3, DType::e5m2}) {
    const Tensor bshd = nan_tensor(dtype, {2, 150, 4, 40});
    attention_into(in.q, in.k, in.v, permute(bshd.view(), {0, 2, 1, 3}), {}, in.options);
    const Tensor given = copy(permute(bshd.view(), {0, 2, 1, 3}), dtype);
    if (dtype == DType::f64) {  // not rounded to f32 on the way would be right too
      EXPECT_TRUE(check_attention(in.q, in.k, in.v, in.options, given, {}).passed);
    } else {
      EXPECT_TRUE(equal_bits(given, plain.o.to(dtype))) << name(dtype);
    }
  }
}

TEST(Plan, BuildsRowsOfItsTilesOnlyForAMask) {
  PlanInputs in;
  EXPECT_EQ(make_plan(in).block_mask(), nullptr);
  in.options.mask_mod = mods::causal();
  const AttentionPlan plan = make_plan(in);
  ASSERT_NE(plan.block_mask(), nullptr);
  EXPECT_EQ(plan.block_mask()->shape(), MaskShape::uniform(2, 4, 150, 130));
  in.options.block_mask =
      std::make_shared<BlockMask>(BlockMask::build(mods::causal(), MaskShape::uniform(2, 4, 150, 130), {33, 50}));
  EXPECT_EQ(make_plan(in).block_mask(), in.options.block_mask.get());
  expect_right(in, run_fresh(in));
}

TEST(Plan, RestrictsToBlockLists) {
  PlanInputs in;
  const Tensor counts = Tensor::zeros(DType::i32, {1, 1, 3}), indices = Tensor::zeros(DType::i32, {1, 1, 3, 2}),
               none = Tensor::zeros(DType::i32, {0});
  for (int row = 0; row < 3;
       ++row) {  // the first row attends to the second block, the next to the first, the last to both
    static_cast<std::int32_t*>(counts.data())[row] = row == 2 ? 2 : 1;
    static_cast<std::int32_t*>(indices.data())[2 * row] = row == 0 ? 1 : 0;
    static_cast<std::int32_t*>(indices.data())[2 * row + 1] = row == 2 ? 1 : 0;
  }
  const MaskShape shape = MaskShape::uniform(2, 4, 150, 130);
  in.options.block_mask =
      std::make_shared<BlockMask>(BlockMask::from_lists({counts, indices, none, none}, shape, {64, 100}));
  const PlanResult listed = run_fresh(in);
  expect_right(in, listed);
  PlanInputs masked = in;
  masked.options.block_mask = nullptr;
  masked.options.mask_mod = (leaf::q_idx() >= 128) | ((leaf::q_idx() < 64) == (leaf::kv_idx() >= 100));
  EXPECT_TRUE(check_attention(in.q, in.k, in.v, masked.options, listed.o, listed.lse).passed);
}

TEST(Plan, ExplainsWhatWasDecided) {
  PlanInputs in(DType::bf16);
  in.options.score_mod = leaf::score() + 0.0 * to_f32(leaf::kv_idx()) + 1.0 * leaf::score();
  in.options.mask_mod = !(leaf::kv_idx() > leaf::q_idx());
  PlanResult run(in);
  AttentionTensors tensors = run.tensors(in);
  tensors.o = TensorView(nullptr, DType::bf16, in.o_shape());
  const AttentionPlan plan(tensors, in.options);
  const std::string text = plan.explain();
  EXPECT_THAT(text, HasSubstr("problem    forward softmax bf16 q[2, 4, 150, 24]"));
  EXPECT_THAT(text, HasSubstr("score      " + print(in.options.score_mod)));
  EXPECT_THAT(text, HasSubstr("mask       " + print(in.options.mask_mod)));
  EXPECT_THAT(text, HasSubstr("simplified: "));
  EXPECT_THAT(text, AllOf(HasSubstr("partial"), HasSubstr("density")));
  EXPECT_THAT(text, HasSubstr("weight     1\n"));
  EXPECT_THAT(text, HasSubstr("plan       "));
  EXPECT_THAT(text, HasSubstr("kernel     "));
  EXPECT_THAT(text, testing::Not(HasSubstr(" \n")));
}

}  // namespace
}  // namespace heddle::test
