// A plan is proven for the params and captures of its mask: others are refused until update() has seen them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "engine/plan_inputs.h"
#include "engine/plan_use.h"
#include "expect_error.h"
#include "heddle/mods.h"

namespace heddle::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(PlanUpdate, RefusesAnotherMaskParamUntilUpdated) {
  PlanInputs in;
  in.options.mask_mod = leaf::q_idx() - leaf::kv_idx() <= param("window", ExprType::i32);
  in.options.bindings.params["window"] = 20;
  AttentionPlan plan = make_plan(in);
  const PlanResult narrow = run_plan(plan, in);
  PlanInputs wide = in;
  wide.options.bindings.params["window"] = 90;
  expect_error([&] { run_plan(plan, in, &wide.options.bindings); }, ErrorCode::invalid_argument, HasSubstr("window"));
  EXPECT_EQ(run_plan(plan, in), narrow);

  plan.update(wide.options.bindings);
  const PlanResult updated = run_plan(plan, in);
  EXPECT_EQ(updated, run_fresh(wide));
  expect_right(wide, updated);
  expect_error([&] { run_plan(plan, in, &in.options.bindings); }, ErrorCode::invalid_argument, HasSubstr("window"));
}

TEST(PlanUpdate, RefusesAnotherMaskCaptureUntilUpdated) {
  PlanInputs in;
  const Tensor ids = Tensor::zeros(DType::i32, {150});
  in.options.mask_mod = mods::documents(Capture("ids", DType::i32, 1));
  in.options.bindings.captures["ids"] = ids;
  AttentionPlan plan = make_plan(in);
  for (int i = 60; i < 150; ++i) static_cast<std::int32_t*>(ids.data())[i] = 1;
  expect_error([&] { run_plan(plan, in); }, ErrorCode::invalid_argument, HasSubstr("ids"));
  plan.update(in.options.bindings);
  expect_right(in, run_plan(plan, in));
}

TEST(PlanUpdate, UpdateThatFailsChangesNothing) {
  PlanInputs in;
  in.options.mask_mod = leaf::kv_idx() < param("limit", ExprType::i32);
  in.options.bindings.params["limit"] = 50;
  AttentionPlan plan = make_plan(in);
  const PlanResult before = run_plan(plan, in);
  Bindings wrong;
  wrong.params["limit"] = 2.5;
  expect_error([&] { plan.update(wrong); }, ErrorCode::invalid_argument,
               "param 'limit' must be i32, but was given f32");
  EXPECT_EQ(run_plan(plan, in), before);
}

TEST(PlanUpdate, UpdateWithANameThatNoModReadsIsRefused) {
  PlanInputs in;
  const Tensor ids = Tensor::zeros(DType::i32, {150});
  in.options.mask_mod =
      mods::documents(Capture("ids", DType::i32, 1)) & (leaf::kv_idx() < param("limit", ExprType::i32));
  in.options.bindings = {.captures = {{"ids", ids}, {"beside", ids}}, .params = {{"limit", 50}}};
  AttentionPlan plan = make_plan(in);
  const PlanResult before = run_plan(plan, in);
  expect_error(
      [&] {
        plan.update({.captures = {}, .params = {{"limit", 60}, {"limt", 70}}});
      },
      ErrorCode::invalid_argument,
      "param 'limt' is given, but no mod reads it; params 'limit' and captures 'ids' are accepted");
  expect_error(
      [&] {
        plan.update({.captures = {{"beside", ids}}, .params = {}});
      },
      ErrorCode::invalid_argument,
      "capture 'beside' is given, but no mod reads it; params 'limit' and captures 'ids' are accepted");
  EXPECT_EQ(run_plan(plan, in), before);
  plan.update({.captures = {{"ids", ids}}, .params = {}});
  EXPECT_EQ(run_plan(plan, in), before);
}

TEST(PlanUpdate, AfterAnUpdateReadsAreProvenByTheUpdatedValues) {
  PlanInputs in;
  const Tensor table = Tensor::zeros(DType::f32, {10}), shorter = Tensor::zeros(DType::f32, {5});
  in.options.score_mod =
      leaf::score() + Capture("table", DType::f32, 1)(clip(param("entry", ExprType::i32), Expr(0), Expr(9)));
  in.options.bindings = {.captures = {{"table", table}}, .params = {{"entry", 2}}};
  AttentionPlan plan = make_plan(in);
  in.options.bindings.captures["table"] = shorter;
  plan.update(in.options.bindings);
  in.options.bindings.params["entry"] = 9;  // inside of the first table alone
  expect_error([&] { run_plan(plan, in, &in.options.bindings); }, ErrorCode::invalid_argument, HasSubstr("table"));
  in.options.bindings.params["entry"] = 4;
  run_plan(plan, in, &in.options.bindings);
}

TEST(PlanUpdate, ACaptureThatOneElementFillsCostsThatElement) {
  PlanInputs in;
  std::int32_t three = 3;
  const ConstTensorView threes(&three, DType::i32, Dims{std::int64_t{1} << 40}, Dims{0});
  const Capture table("table", DType::i32, 1);
  in.options.score_mod = leaf::score() * to_f32(table(leaf::q_idx() + leaf::kv_idx()));
  in.options.mask_mod = table(leaf::kv_idx()) + leaf::q_idx() > leaf::kv_idx();
  in.options.bindings.captures["table"] = threes;
  AttentionPlan plan = make_plan(in);
  const PlanResult result = run_plan(plan, in);
  plan.update(in.options.bindings);
  EXPECT_EQ(run_plan(plan, in), result);
  in.options.score_mod = leaf::score() * 3.0;
  in.options.mask_mod = leaf::q_idx() + 3 > leaf::kv_idx();
  EXPECT_EQ(run_fresh(in), result);
}

TEST(PlanUpdate, ACopyOfARepeatedCaptureIsCurrent) {
  PlanInputs in;
  std::int32_t ids[150] = {};
  in.options.mask_mod = mods::documents(Capture("ids", DType::i32, 1));
  in.options.bindings.captures["ids"] = ConstTensorView(ids, DType::i32, Dims{150}, Dims{0});
  const AttentionPlan plan = make_plan(in);
  const PlanResult planned = run_plan(plan, in);
  Bindings copied;
  copied.captures["ids"] = ConstTensorView(ids, DType::i32, Dims{150});
  EXPECT_EQ(run_plan(plan, in, &copied), planned);
  ids[149] = 1;
  expect_error([&] { run_plan(plan, in, &copied); }, ErrorCode::invalid_argument, HasSubstr("ids"));
}

TEST(PlanUpdate, RunsAndAnUpdateRefuseEachOther) {
  engine::PlanUse use;
  const auto update = [&] { const engine::PlanUse::Update one(use); };
  const auto run = [&] { const engine::PlanUse::Run one(use); };
  {
    const engine::PlanUse::Run one(use), other(use);
    expect_error(update, ErrorCode::invalid_argument,
                 "the plan is being run or updated; an update before or after that is accepted");
  }
  {
    const engine::PlanUse::Update one(use);
    expect_error(run, ErrorCode::invalid_argument, "the plan is being updated; runs before or after that are accepted");
    expect_error(update, ErrorCode::invalid_argument, HasSubstr("the plan is being run or updated"));
  }
  update();
  run();
}

TEST(PlanUpdate, ThreadsThatRunAndUpdateGetResultsOrRefusals) {
  PlanInputs in;
  in.options.mask_mod = leaf::kv_idx() < param("limit", ExprType::i32);
  in.options.bindings.params["limit"] = 50;
  AttentionPlan plan = make_plan(in);
  const PlanResult before = run_plan(plan, in);
  const auto done_or_refused = [](auto&& call) {
    try {
      call();
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("the plan is being"));
    }
  };
  std::atomic<int> left = 2;
  const auto updates = [&] {
    for (int i = 0; i < 40; ++i) done_or_refused([&] { plan.update(in.options.bindings); });
    --left;
  };
  const std::jthread one(updates), other(updates);
  while (left > 0) done_or_refused([&] { EXPECT_EQ(run_plan(plan, in), before); });
}

}  // namespace
}  // namespace heddle::test
