// attention() and its plans: what finds a plan again, what does not, and what a call costs then.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <thread>
#include <vector>

#include "count_allocations.h"
#include "engine/attention_case.h"
#include "expect_error.h"
#include "heddle/mods.h"
#include "scoped_environment.h"

namespace heddle::test {
namespace {

using testing::HasSubstr;

class PlanCache : public testing::Test {
 protected:
  void SetUp() override { clear_plan_cache(); }
  void TearDown() override { clear_plan_cache(); }
};

Tensor reals(const Dims& shape, int seed) {
  Tensor tensor = Tensor::empty(DType::f32, shape);
  auto* x = static_cast<float*>(tensor.data());
  for (std::int64_t i = 0; i < tensor.count(); ++i) {
    x[i] = std::sin(static_cast<float>((i + 1) * (seed + 3) % 1009));
  }
  return tensor;
}

struct CachedCall {
  Tensor q = reals({2, 4, 40, 16}, 1), k = reals({2, 2, 50, 16}, 2), v = reals({2, 2, 50, 8}, 3);
  AttentionOptions options;

  /// Right by the criterion; and what the call did to the cache.
  PlanCacheCounts check() const {
    const PlanCacheCounts before = plan_cache_counts();
    const AttentionResult result = attention(q, k, v, options, true);
    const CheckReport report = check_attention(q, k, v, options, result.o, result.lse.view());
    EXPECT_TRUE(report.passed) << report.text();
    const PlanCacheCounts after = plan_cache_counts();
    return {after.hits - before.hits, after.misses - before.misses, after.evictions - before.evictions, after.plans,
            after.bytes};
  }
  void expect_hit() const {
    const PlanCacheCounts counts = check();
    EXPECT_EQ(counts.hits, 1);
    EXPECT_EQ(counts.misses, 0);
  }
  void expect_miss() const {
    const PlanCacheCounts counts = check();
    EXPECT_EQ(counts.hits, 0);
    EXPECT_EQ(counts.misses, 1);
  }
};

TEST_F(PlanCache, FindsTheSameProblemInOtherMemory) {
  CachedCall call;
  call.options.mask_mod = mods::causal();
  call.expect_miss();
  call.expect_hit();
  call.q = reals({2, 4, 40, 16}, 9);
  call.expect_hit();
  call.options.mask_mod = parse(print(mods::causal()));  // the same graph
  call.expect_hit();
}

TEST_F(PlanCache, AnythingThatAPlanDependsOnIsAnotherPlan) {
  CachedCall call;
  call.expect_miss();
  const auto other = [&](auto&& change) {
    CachedCall changed = call;
    change(changed);
    changed.expect_miss();
    changed.expect_hit();
    call.expect_hit();
  };
  other([](CachedCall& c) { c.q = reals({2, 4, 41, 16}, 1); });
  other([](CachedCall& c) {
    c.k = reals({2, 2, 50, 16}, 2).to(DType::f32), c.q = c.q.to(DType::f32);
    c.options.scale = 0.5;
  });
  other([](CachedCall& c) { c.options.score_mod = leaf::score() * 2.0; });
  other([](CachedCall& c) { c.options.mask_mod = mods::sliding_window(7); });
  other([](CachedCall& c) { c.options.threads = 1; });
  other([](CachedCall& c) { c.options.clamp_reads = true; });
  other([](CachedCall& c) { c.options.batch_invariant = true; });
  other([](CachedCall& c) { c.options.fresh_tokens = 1; });
  other([](CachedCall& c) { c.options.backend = BackendChoice::reference; });
  other([](CachedCall& c) { c.v = reals({2, 2, 50, 9}, 3); });
}

// The plan is made for them: their content counts, not where they are.
TEST_F(PlanCache, KnowsLengthsByTheirContent) {
  CachedCall call;
  Tensor lengths = Tensor::zeros(DType::i32, {2});
  auto* length = static_cast<std::int32_t*>(lengths.data());
  length[0] = 50, length[1] = 20;
  call.options.kv_lengths = lengths.view();
  call.expect_miss();
  const Tensor same = lengths.to(DType::i32);
  call.options.kv_lengths = same.view();
  call.expect_hit();
  call.options.kv_lengths = lengths.view();
  length[1] = 30;
  call.expect_miss();
  length[1] = 20;
  call.expect_hit();
}

TEST_F(PlanCache, KnowsWhatAMaskReadsByItsContent) {
  CachedCall call;
  Tensor ids = Tensor::zeros(DType::i32, {50});
  auto* id = static_cast<std::int32_t*>(ids.data());
  for (int i = 0; i < 50; ++i) id[i] = i / 20;
  const Capture doc("doc", DType::i32, 1);
  call.options.mask_mod = doc(leaf::q_idx()) == doc(leaf::kv_idx()) && leaf::kv_idx() < param("limit", ExprType::i32);
  call.options.bindings = {.captures = {{"doc", ids}}, .params = {{"limit", 45}}};
  call.expect_miss();
  call.expect_hit();
  id[7] = 5;  // in place
  call.expect_miss();
  call.expect_hit();
  call.options.bindings.params["limit"] = 12;
  call.expect_miss();
  call.options.bindings.params["limit"] = 45;
  call.expect_hit();
}

// These come with each run.
TEST_F(PlanCache, ScoresParamsAndCapturesAreTheRuns) {
  CachedCall call;
  const Capture slopes("slopes", DType::f32, 1);
  call.options.score_mod =
      leaf::score() * param("factor", ExprType::f32) + slopes(leaf::h()) * to_f32(leaf::kv_idx() - leaf::q_idx());
  const Tensor some = reals({4}, 5), others = reals({4}, 6), sinks = reals({4}, 7);
  call.options.bindings = {.captures = {{"slopes", some}}, .params = {{"factor", 0.5}}};
  call.expect_miss();
  call.options.bindings = {.captures = {{"slopes", others}}, .params = {{"factor", 1.5}}};
  call.expect_hit();
  call.options.sinks = sinks.view();
  call.expect_miss();
  const Tensor larger = reals({4}, 8);
  call.options.sinks = larger.view();
  call.expect_hit();
}

TEST_F(PlanCache, ABlockMaskIsKnownByItsRows) {
  CachedCall call;
  const Expr mask = leaf::kv_idx() - leaf::q_idx() < param("reach", ExprType::i32);
  const MaskShape shape = {4, {{.q_len = 40, .kv_len = 50}, {.q_len = 40, .kv_len = 50}}};
  call.options.bindings.params["reach"] = 5;
  const auto rows = std::make_shared<BlockMask>(BlockMask::build(mask, shape, {16, 64}, call.options.bindings));
  call.options.mask_mod = mask;
  call.options.block_mask = rows;
  call.expect_miss();
  call.expect_hit();
  call.options.bindings.params["reach"] = 20;
  rows->update(call.options.bindings);  // in place
  call.expect_miss();
  call.expect_hit();
}

TEST_F(PlanCache, RefusesWhatAPlanWould) {
  CachedCall call;
  call.check();
  const auto refuse = [&](auto&& change, const char* sentence) {
    CachedCall changed = call;
    change(changed);
    for (int i = 0; i < 2; ++i) {
      expect_error([&] { attention(changed.q, changed.k, changed.v, changed.options); }, ErrorCode::invalid_argument,
                   HasSubstr(sentence));
    }
  };
  refuse([](CachedCall& c) { c.options.mask_mod = leaf::kv_idx() < param("limit", ExprType::i32); }, "limit");
  alignas(8) static const std::int32_t words[4] = {1, 1, 1, 1};
  refuse(
      [&](CachedCall& c) {
        c.options.kv_lengths = ConstTensorView(reinterpret_cast<const char*>(words) + 1, DType::i32, Dims{2});
      },
      "kv_lengths");
  refuse([&](CachedCall& c) { c.options.kv_lengths = ConstTensorView(nullptr, DType::i32, Dims{2}); }, "kv_lengths");
  // A mask's capture that has gone since its plan was made.
  const Tensor ids = Tensor::zeros(DType::i32, {50});
  const Capture doc("doc", DType::i32, 1);
  call.options.mask_mod = doc(leaf::q_idx()) == doc(leaf::kv_idx());
  call.options.bindings.captures["doc"] = ids;
  call.check();
  refuse([](CachedCall& c) { c.options.bindings.captures["doc"].data = nullptr; }, "doc");
}

TEST_F(PlanCache, IsBoundedByWhatPlansHold) {
  const CachedCall plain;
  for (const char* limit : {"0", "1"}) {
    clear_plan_cache();
    const ScopedVariable bytes("HEDDLE_PLAN_CACHE_BYTES", limit);
    CachedCall call;
    call.options.mask_mod = mods::causal();
    call.expect_miss();
    EXPECT_EQ(plan_cache_counts().plans, *limit - '0');
    call.options.mask_mod = mods::sliding_window(5);
    const PlanCacheCounts counts = call.check();
    EXPECT_EQ(counts.plans, *limit - '0');  // the latest alone
    EXPECT_EQ(counts.evictions, *limit - '0');
  }
  clear_plan_cache();
  for (int i = 0; i < 260; ++i) {
    CachedCall call;
    call.options.scale = 1.0 / (i + 1);
    attention(call.q, call.k, call.v, call.options);
  }
  EXPECT_EQ(plan_cache_counts().plans, 256);
  clear_plan_cache();
  EXPECT_EQ(plan_cache_counts().plans, 0);
  EXPECT_EQ(plan_cache_counts().bytes, 0);
}

// A warm call allocates only what a plan's own run does: no workspace, no key, no lookup allocates.
TEST_F(PlanCache, AWarmCallAllocatesNoMoreThanARun) {
  CachedCall call;
  call.options.threads = 1;
  call.options.mask_mod = mods::causal() && leaf::kv_idx() < param("limit", ExprType::i32);
  call.options.bindings.params["limit"] = 45;
  const Tensor o = Tensor::empty(DType::f32, {2, 4, 40, 8}), lse = Tensor::empty(DType::f32, {2, 4, 40});
  const AttentionTensors tensors = {call.q, call.k, call.v, o, lse.view()};
  const AttentionPlan plan(tensors, call.options);
  const Tensor workspace = Tensor::empty(DType::u8, {plan.workspace_bytes()});
  const RunOptions run = {.workspace = workspace.data(), .bindings = &call.options.bindings};
  const auto once = [&] { attention_into(call.q, call.k, call.v, o, lse.view(), call.options); };
  plan.run(tensors, run);
  once();
  once();
  const std::int64_t of_run = allocations_of([&] { plan.run(tensors, run); });
  EXPECT_LE(allocations_of(once), of_run);
}

TEST_F(PlanCache, ServesManyThreads) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([t] {
      for (int i = 0; i < 12; ++i) {
        CachedCall call;
        call.options.threads = 1;
        call.options.scale = 1.0 / (1 + (i + t) % 3);
        if (i == 6 && t == 0) clear_plan_cache();
        call.check();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const PlanCacheCounts counts = plan_cache_counts();
  EXPECT_LE(counts.plans, 3);
  EXPECT_GT(counts.hits, 0);
}

TEST_F(PlanCache, ACachedPlanRunsWithItsCallersViews) {
  CachedCall call;
  const Tensor o = Tensor::empty(DType::f32, {2, 4, 40, 8});
  const AttentionTensors tensors = {call.q, call.k, call.v, o, {}};
  {
    const Tensor gone = reals({4}, 1);
    call.options.sinks = gone.view();
    cached_plan(tensors, call.options);
  }
  const Tensor sinks = reals({4}, 2);
  call.options.sinks = sinks.view();
  AttentionPlan plan = cached_plan(tensors, call.options);
  EXPECT_EQ(plan_cache_counts().plans, 1);
  plan.run(tensors, {.options = &call.options});
  const CheckReport report = check_attention(call.q, call.k, call.v, call.options, o, std::nullopt);
  EXPECT_TRUE(report.passed) << report.text();
  expect_error([&] { plan.update({}); }, ErrorCode::invalid_argument,
               HasSubstr("update of a plan of the plan cache, which other calls share"));
  AttentionOptions without = call.options;
  without.sinks.reset();
  expect_error([&] { plan.run(tensors, {.options = &without}); }, ErrorCode::invalid_argument,
               "sinks is not given; the plan was made with it");
  const Tensor wide = reals({4, 2}, 3);
  without.sinks = ConstTensorView(wide.data(), DType::f32, Dims{4}, Dims{2});
  expect_error([&] { plan.run(tensors, {.options = &without}); }, ErrorCode::invalid_argument,
               HasSubstr("sinks is f32 [4] with strides [2] on the CPU; the planned f32 [4] with strides [1]"));
  EXPECT_THAT(plan.explain(),
              testing::ContainsRegex("\nplan cache hits [0-9]+, misses [0-9]+, evictions [0-9]+, plans 1, bytes 0\n"));
  EXPECT_THAT(AttentionPlan(tensors, call.options).explain(), testing::Not(HasSubstr("plan cache")));
}

}  // namespace
}  // namespace heddle::test
