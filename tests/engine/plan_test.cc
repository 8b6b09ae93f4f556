// AttentionPlan: made once, run many times, with other values, threads, workspaces and outputs.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <thread>

#include "engine/attention_case.h"
#include "expect_error.h"
#include "heddle/devices.h"
#include "heddle/mods.h"

namespace heddle::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

Tensor random_tensor(DType dtype, const Dims& shape, std::uint64_t seed) {
  Tensor tensor = Tensor::empty(DType::f32, shape);
  std::mt19937_64 rng(seed);
  std::normal_distribution<float> normal;
  for (std::int64_t i = 0; i < tensor.count(); ++i) static_cast<float*>(tensor.data())[i] = normal(rng);
  return tensor.to(dtype);
}

Tensor nans(DType dtype, const Dims& shape) {
  Tensor tensor = Tensor::empty(dtype, shape);
  std::memset(tensor.data(), 0xff, static_cast<std::size_t>(tensor.count() * size_of(dtype)));
  return tensor;
}

bool same_bits(const Tensor& x, const Tensor& y) {
  return x.dtype() == y.dtype() && x.shape() == y.shape() &&
         std::memcmp(x.data(), y.data(), static_cast<std::size_t>(x.count() * size_of(x.dtype()))) == 0;
}

// Inputs of one attention and the outputs of a run.
struct Inputs {
  Tensor q, k, v;
  AttentionOptions options;

  explicit Inputs(DType dtype = DType::f32, std::int64_t q_rows = 150, std::int64_t kv_rows = 130)
      : q(random_tensor(dtype, {2, 4, q_rows, 24}, 1)),
        k(random_tensor(dtype, {2, 2, kv_rows, 24}, 2)),
        v(random_tensor(dtype, {2, 2, kv_rows, 40}, 3)) {
    options.backend = backend_under_test();
  }
  Dims o_shape() const { return {2, 4, q.shape()[2], 40}; }
  Dims lse_shape() const { return {2, 4, q.shape()[2]}; }
};

struct Result {
  Tensor o, lse;
  bool operator==(const Result& other) const { return same_bits(o, other.o) && same_bits(lse, other.lse); }

  explicit Result(const Inputs& in) : o(nans(DType::f32, in.o_shape())), lse(nans(DType::f32, in.lse_shape())) {}
  AttentionTensors tensors(const Inputs& in) const { return {in.q, in.k, in.v, o, lse.view()}; }
};

Result run_plan(const AttentionPlan& plan, const Inputs& in, const Bindings* bindings = nullptr,
                void* workspace = nullptr) {
  Result run(in);
  plan.run(run.tensors(in), {.workspace = workspace, .bindings = bindings});
  return run;
}
AttentionPlan make_plan(const Inputs& in) { return {Result(in).tensors(in), in.options}; }
Result run_fresh(const Inputs& in) { return run_plan(make_plan(in), in); }

void expect_right(const Inputs& in, const Result& run) {
  const CheckReport report = check_attention(in.q, in.k, in.v, in.options, run.o, run.lse);
  EXPECT_TRUE(report.passed) << report.text();
}

TEST(Plan, RunsManyTimes) {
  Inputs in;
  in.options.mask_mod = mods::causal();
  const AttentionPlan plan = make_plan(in);
  const Result first = run_plan(plan, in);
  expect_right(in, first);
  EXPECT_EQ(run_plan(plan, in), first);
  in.q = random_tensor(DType::f32, in.q.shape(), 9);  // other memory of the same shape
  const Result other = run_plan(plan, in);
  EXPECT_FALSE(other == first);
  expect_right(in, other);
}

TEST(Plan, ThatWasMovedFromIsToldApart) {
  const Inputs in;
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
  Inputs in;
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
    Inputs in(dtype, 201, 333);
    in.options.mask_mod = mods::sliding_window(70, 30);
    in.options.score_mod = mods::softcap(3);
    in.options.threads = 1;
    const AttentionResult serial = attention(in.q, in.k, in.v, in.options, true);
    for (const int threads : {2, 3, 7}) {
      in.options.threads = threads;
      const AttentionResult parallel = attention(in.q, in.k, in.v, in.options, true);
      EXPECT_TRUE(same_bits(parallel.o, serial.o)) << name(dtype) << ' ' << threads;
      EXPECT_TRUE(same_bits(parallel.lse, serial.lse)) << name(dtype) << ' ' << threads;
    }
  }
}

TEST(Plan, RunsOnTwoThreadsAtOnce) {
  Inputs in;
  in.options.mask_mod = mods::causal_lower_right();
  in.options.threads = 2;
  const AttentionPlan plan = make_plan(in);
  const Result expected = run_plan(plan, in);
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
  const Inputs in;
  const AttentionPlan plan = make_plan(in);
  const Result own = run_plan(plan, in);
  const Tensor workspace = nans(DType::u8, {plan.workspace_bytes() + 64});
  EXPECT_EQ(run_plan(plan, in, nullptr, workspace.data()), own);
  const auto* behind = static_cast<const std::byte*>(workspace.data()) + plan.workspace_bytes();
  for (int i = 0; i < 64; ++i) EXPECT_EQ(behind[i], std::byte{0xff});
  expect_error([&] { run_plan(plan, in, nullptr, static_cast<std::byte*>(workspace.data()) + 8); },
               ErrorCode::invalid_argument, HasSubstr("an address that 64 divides is accepted"));
}

TEST(Plan, RunsWithOtherScoreParams) {
  Inputs in;
  in.options.score_mod = leaf::score() * param("temperature", ExprType::f32);
  in.options.bindings.params["temperature"] = 1.0;
  const AttentionPlan plan = make_plan(in);
  const Result one = run_plan(plan, in);
  Inputs hotter = in;
  hotter.options.bindings.params["temperature"] = 3.0;
  const Result three = run_plan(plan, in, &hotter.options.bindings);
  EXPECT_FALSE(three == one);
  EXPECT_EQ(three, run_fresh(hotter));
  expect_right(hotter, three);
  const Bindings nothing;
  expect_error([&] { run_plan(plan, in, &nothing); }, ErrorCode::invalid_argument,
               "param 'temperature' was given no value");
}

TEST(Plan, ReadsScoreCapturesOfEachRun) {
  Inputs in;
  const Tensor slopes = mods::alibi_slopes(4);
  in.options.score_mod = mods::alibi(Capture("slopes", DType::f32, 1));
  in.options.bindings.captures["slopes"] = slopes;
  const AttentionPlan plan = make_plan(in);
  const Result before = run_plan(plan, in);
  static_cast<float*>(slopes.data())[1] = 2;
  const Result after = run_plan(plan, in);
  EXPECT_FALSE(after == before);
  expect_right(in, after);
}

TEST(Plan, RefusesAnotherMaskParamUntilUpdated) {
  Inputs in;
  in.options.mask_mod = leaf::q_idx() - leaf::kv_idx() <= param("window", ExprType::i32);
  in.options.bindings.params["window"] = 20;
  AttentionPlan plan = make_plan(in);
  const Result narrow = run_plan(plan, in);
  Inputs wide = in;
  wide.options.bindings.params["window"] = 90;
  expect_error([&] { run_plan(plan, in, &wide.options.bindings); }, ErrorCode::invalid_argument, HasSubstr("window"));
  EXPECT_EQ(run_plan(plan, in), narrow);

  plan.update(wide.options.bindings);
  const Result updated = run_plan(plan, in);
  EXPECT_EQ(updated, run_fresh(wide));
  expect_right(wide, updated);
  expect_error([&] { run_plan(plan, in, &in.options.bindings); }, ErrorCode::invalid_argument, HasSubstr("window"));
}

TEST(Plan, RefusesAnotherMaskCaptureUntilUpdated) {
  Inputs in;
  const Tensor ids = Tensor::zeros(DType::i32, {150});
  in.options.mask_mod = mods::documents(Capture("ids", DType::i32, 1));
  in.options.bindings.captures["ids"] = ids;
  AttentionPlan plan = make_plan(in);
  for (int i = 60; i < 150; ++i) static_cast<std::int32_t*>(ids.data())[i] = 1;
  expect_error([&] { run_plan(plan, in); }, ErrorCode::invalid_argument, HasSubstr("ids"));
  plan.update(in.options.bindings);
  expect_right(in, run_plan(plan, in));
}

TEST(Plan, UpdateThatFailsChangesNothing) {
  Inputs in;
  in.options.mask_mod = leaf::kv_idx() < param("limit", ExprType::i32);
  in.options.bindings.params["limit"] = 50;
  AttentionPlan plan = make_plan(in);
  const Result before = run_plan(plan, in);
  Bindings wrong;
  wrong.params["limit"] = 2.5;
  expect_error([&] { plan.update(wrong); }, ErrorCode::invalid_argument,
               "param 'limit' must be i32, but was given f32");
  EXPECT_EQ(run_plan(plan, in), before);
}

TEST(Plan, UpdateWithANameThatNoModReadsIsRefused) {
  Inputs in;
  const Tensor ids = Tensor::zeros(DType::i32, {150});
  in.options.mask_mod =
      mods::documents(Capture("ids", DType::i32, 1)) & (leaf::kv_idx() < param("limit", ExprType::i32));
  in.options.bindings = {.captures = {{"ids", ids}, {"beside", ids}}, .params = {{"limit", 50}}};
  AttentionPlan plan = make_plan(in);
  const Result before = run_plan(plan, in);
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

TEST(Plan, AfterAnUpdateReadsAreProvenByTheUpdatedValues) {
  Inputs in;
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

TEST(Plan, ACaptureThatOneElementFillsCostsThatElement) {
  Inputs in;
  std::int32_t three = 3;
  const ConstTensorView threes(&three, DType::i32, Dims{std::int64_t{1} << 40}, Dims{0});
  const Capture table("table", DType::i32, 1);
  in.options.score_mod = leaf::score() * to_f32(table(leaf::q_idx() + leaf::kv_idx()));
  in.options.mask_mod = table(leaf::kv_idx()) + leaf::q_idx() > leaf::kv_idx();
  in.options.bindings.captures["table"] = threes;
  AttentionPlan plan = make_plan(in);
  const Result result = run_plan(plan, in);
  plan.update(in.options.bindings);
  EXPECT_EQ(run_plan(plan, in), result);
  in.options.score_mod = leaf::score() * 3.0;
  in.options.mask_mod = leaf::q_idx() + 3 > leaf::kv_idx();
  EXPECT_EQ(run_fresh(in), result);
}

TEST(Plan, ACopyOfARepeatedCaptureIsCurrent) {
  Inputs in;
  std::int32_t ids[150] = {};
  in.options.mask_mod = mods::documents(Capture("ids", DType::i32, 1));
  in.options.bindings.captures["ids"] = ConstTensorView(ids, DType::i32, Dims{150}, Dims{0});
  const AttentionPlan plan = make_plan(in);
  const Result planned = run_plan(plan, in);
  Bindings copied;
  copied.captures["ids"] = ConstTensorView(ids, DType::i32, Dims{150});
  EXPECT_EQ(run_plan(plan, in, &copied), planned);
  ids[149] = 1;
  expect_error([&] { run_plan(plan, in, &copied); }, ErrorCode::invalid_argument, HasSubstr("ids"));
}

TEST(Plan, ProvesIndicesAgainForEveryRun) {
  Inputs in;
  const Capture weights("weights", DType::f32, 1), table("table", DType::i32, 1);
  const Tensor values = random_tensor(DType::f32, {160}, 4), order = Tensor::zeros(DType::i32, {130});
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
  const Inputs in;
  const AttentionPlan plan = make_plan(in);
  const Result run(in);
  AttentionTensors tensors = run.tensors(in);
  tensors.lse->data = tensors.o.data;
  expect_error([&] { plan.run(tensors); }, ErrorCode::invalid_argument,
               "o overlaps lse in memory; outputs that share no byte are accepted");
  EXPECT_EQ(run, Result(in));  // still NaN
}

TEST(Plan, WritesAnyLayoutAndFloatingType) {
  const Inputs in;
  const Result plain = run_fresh(in);
  for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16, DType::e4m3, DType::e5m2}) {
    const Tensor bshd = nans(dtype, {2, 150, 4, 40});
    attention_into(in.q, in.k, in.v, permute(bshd.view(), {0, 2, 1, 3}), {}, in.options);
    const Tensor given = copy(permute(bshd.view(), {0, 2, 1, 3}), dtype);
    if (dtype == DType::f64) {  // not rounded to f32 on the way would be right too
      EXPECT_TRUE(check_attention(in.q, in.k, in.v, in.options, given, {}).passed);
    } else {
      EXPECT_TRUE(same_bits(given, plain.o.to(dtype))) << name(dtype);
    }
  }
}

TEST(Plan, BuildsRowsOfItsTilesOnlyForAMask) {
  Inputs in;
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
  Inputs in;
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
  const Result listed = run_fresh(in);
  expect_right(in, listed);
  Inputs masked = in;
  masked.options.block_mask = nullptr;
  masked.options.mask_mod = (leaf::q_idx() >= 128) | ((leaf::q_idx() < 64) == (leaf::kv_idx() >= 100));
  EXPECT_TRUE(check_attention(in.q, in.k, in.v, masked.options, listed.o, listed.lse).passed);
}

TEST(Plan, ExplainsWhatWasDecided) {
  Inputs in(DType::bf16);
  in.options.score_mod = leaf::score() + 0.0 * to_f32(leaf::kv_idx()) + 1.0 * leaf::score();
  in.options.mask_mod = !(leaf::kv_idx() > leaf::q_idx());
  Result run(in);
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

TEST(Attention, AllocatesItsOutputs) {
  for (const auto& [dtype, o_dtype, lse_dtype] :
       {std::tuple(DType::f64, DType::f64, DType::f64), std::tuple(DType::f32, DType::f32, DType::f32),
        std::tuple(DType::f16, DType::f16, DType::f32), std::tuple(DType::e5m2, DType::bf16, DType::f32)}) {
    const Inputs in(dtype);
    const AttentionResult result = attention(in.q, in.k, in.v, in.options, true);
    EXPECT_EQ(result.o.dtype(), o_dtype);
    EXPECT_EQ(result.o.shape(), in.o_shape());
    EXPECT_EQ(result.lse.dtype(), lse_dtype);
    EXPECT_EQ(result.lse.shape(), in.lse_shape());
    EXPECT_EQ(attention(in.q, in.k, in.v, in.options).lse.count(), 0);
  }
}

TEST(Attention, TakesTheCpuBackendByDefault) {
  Inputs in;
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
  Inputs in;  // 150 queries, 130 keys
  const Tensor starts = Tensor::zeros(DType::i32, {2});
  for (int i = 0; i < 2; ++i) static_cast<std::int32_t*>(starts.data())[i] = 130 - 150;
  in.options.q_start = starts;
  in.options.mask_mod = mods::causal();
  const Result shifted = run_fresh(in);
  expect_right(in, shifted);
  EXPECT_EQ(get_element(shifted.lse, {1, 3, 19}), -INFINITY);  // the first 20 queries come before all keys
  EXPECT_GT(get_element(shifted.lse, {1, 3, 20}), -INFINITY);
  in.options.q_start.reset();
  in.options.mask_mod = mods::causal_lower_right();
  EXPECT_EQ(run_fresh(in), shifted);
}

// A short run may be over before there is anything to say; the reference says something after each of its tasks.
TEST(Attention, ReportsProgressUpToOne) {
  Inputs in;
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
