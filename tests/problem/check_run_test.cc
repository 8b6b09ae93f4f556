// The checks of each run: what they refuse, and that they allocate nothing.
#include <gtest/gtest.h>

#include "count_allocations.h"
#include "expect_error.h"
#include "heddle/mods.h"
#include "problem/call.h"

namespace heddle::test {
namespace {

// A call with everything that a run looks at: sinks, captures and params of each mod.
Call rich_call() {
  Call call;
  call.options.sinks = call.keep(f32s({1, 2, 3, 4}));
  call.capture("slopes_with_a_name_that_no_small_string_holds", f32s({1, 2, 3, 4}));
  call.capture("ids", i32s({0, 0, 0, 1, 1, 1, 1, 1}));
  call.options.score_mod = mods::alibi(Capture("slopes_with_a_name_that_no_small_string_holds", DType::f32, 1));
  call.options.mask_mod =
      mods::documents(Capture("ids", DType::i32, 1)) & (leaf::kv_idx() < param("limit", ExprType::i32));
  call.options.bindings.params["limit"] = 7;
  return call;
}

TEST(Run, ChecksWithoutAllocating) {
  EXPECT_GT(allocations_of([] { Tensor::zeros(DType::f32, {8}); }), 0);  // the counter counts
  const Call call = rich_call();
  const problem::AttentionProblem problem = call.validate();
  const problem::PlannedTensors planned(call.tensors);
  const BlockMask mask =
      BlockMask::build(problem.mask_mod, {problem.q_heads, problem.sequences}, {4, 4}, call.options.bindings);
  Bindings other = call.options.bindings;
  EXPECT_EQ(allocations_of([&] {
              problem::validate_run(problem, planned, call.tensors, call.options, other);
              EXPECT_TRUE(problem::fits_planned(problem, call.options.bindings, other));
              mask.check_current(other);
            }),
            0);
}

// o between the rows of a q that has gaps: only an exact search tells that they share nothing.
TEST(Run, SearchesInterleavedTensorsWithoutAllocating) {
  Call call;
  const Tensor both = Tensor::zeros(DType::f32, {2, 4, 6, 40});
  const auto part = [&](std::int64_t first, std::int64_t columns) {
    return TensorView(static_cast<float*>(both.data()) + first, DType::f32, {2, 4, 6, columns}, {960, 240, 40, 1});
  };
  call.tensors.q = part(0, 16);
  call.tensors.o = part(16, 24);
  const problem::AttentionProblem problem = call.validate();
  const problem::PlannedTensors planned(call.tensors);
  EXPECT_EQ(allocations_of([&] { problem::validate_run(problem, planned, call.tensors, call.options, {}); }), 0);
  AttentionTensors given = call.tensors;
  given.o.data = static_cast<float*>(both.data()) + 15;
  expect_error([&] { problem::validate_run(problem, planned, given, call.options, {}); }, ErrorCode::invalid_argument,
               "o overlaps q in memory; an output that shares no byte with an input is accepted");
}

TEST(Run, KnowsBindingsThatNeedNoProof) {
  const Call call = rich_call();
  const problem::AttentionProblem problem = call.validate();
  EXPECT_EQ(problem.params, std::vector<std::string>({"limit"}));
  const auto fits = [&](const std::function<void(Bindings&)>& change) {
    Bindings given = call.options.bindings;
    change(given);
    return problem::fits_planned(problem, call.options.bindings, given);
  };
  EXPECT_TRUE(fits([](Bindings& b) { b.params["limit"] = 3; }));
  EXPECT_TRUE(fits([](Bindings& b) { b.params["unused"] = true; }));
  EXPECT_TRUE(fits([](Bindings& b) { b.captures["ids"].data = nullptr; }));  // memory is another check's
  EXPECT_FALSE(fits([](Bindings& b) { b.params["limit"] = 3.0; }));
  EXPECT_FALSE(fits([](Bindings& b) { b.params.clear(); }));
  EXPECT_FALSE(fits([](Bindings& b) { b.captures.erase("ids"); }));
  EXPECT_FALSE(fits([](Bindings& b) { b.captures["ids"].shape = {7}; }));
  EXPECT_FALSE(fits([](Bindings& b) { b.captures["ids"].strides = {2}; }));
  EXPECT_FALSE(fits([](Bindings& b) { b.captures["ids"].dtype = DType::i64; }));
  EXPECT_FALSE(fits([](Bindings& b) { b.captures["ids"].device = {DeviceKind::cuda, 0}; }));
}

TEST(Run, NamesCapturesWithoutMemory) {
  const Call call = rich_call();
  const problem::AttentionProblem problem = call.validate();
  Bindings given = call.options.bindings;
  given.captures["ids"].data = nullptr;
  expect_error(
      [&] { problem::validate_run(problem, problem::PlannedTensors(call.tensors), call.tensors, call.options, given); },
      ErrorCode::invalid_argument, "capture 'ids' is i32 [8] but its data is null");
}

}  // namespace
}  // namespace heddle::test
