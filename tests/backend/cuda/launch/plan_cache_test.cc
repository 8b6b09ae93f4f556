// attention_into() on a GPU with a warm plan cache: a run's launch and nothing else, in a workspace of each stream.
#include <set>
#include <thread>
#include <vector>

#include "count_allocations.h"
#include "expect_error.h"
#include "launch_case.h"
#include "scoped_environment.h"

namespace heddle::cuda {
namespace {

class LaunchCached : public LaunchCase {
 protected:
  void SetUp() override {
    LaunchCase::SetUp();
    if (!IsSkipped()) clear_plan_cache();
  }
  void TearDown() override { clear_plan_cache(); }
};

void call(const CallTensors& own, const AttentionOptions& options = {}) {
  const AttentionTensors& tensors = own.tensors();
  attention_into(tensors.q, tensors.k, tensors.v, tensors.o, tensors.lse, options);
}

TEST_F(LaunchCached, AWarmCallIsOneLaunchAndNothingElse) {
  const Tensor ids = Tensor::zeros(DType::i32, {3, 150}).to(kFirst);
  for (const bool masked : {false, true}) {
    const CallTensors own(many_tiles()), others(many_tiles());
    AttentionOptions options = masked ? masked_options(ids) : AttentionOptions();
    const FakeStream stream;
    options.stream = stream.handle();
    call(own, options);
    call(own, options);  // what the driver and this thread do once
    const std::string before = work_done();
    const int launches = fake().launches;
    EXPECT_EQ(test::allocations_of([&] { call(others, options); }), 0);
    EXPECT_EQ(fake().launches, launches + 1);
    EXPECT_EQ(work_done(), before);
    EXPECT_EQ(last_launch().config.hStream, stream.handle());
  }
}

TEST_F(LaunchCached, EachStreamHasItsWorkspace) {
  const CallTensors own(many_tiles());
  std::set<const void*> workspaces;
  const std::vector<FakeStream> streams(3);
  for (int round = 0; round < 2; ++round) {
    for (const FakeStream& stream : streams) {
      AttentionOptions options;
      options.stream = stream.handle();
      call(own, options);
      workspaces.insert(last_launch().params.tiles.tickets);
    }
  }
  EXPECT_EQ(workspaces.size(), 3U);
  EXPECT_FALSE(workspaces.contains(nullptr));
}

// Memory that is aligned less far is copied first, which is another plan.
TEST_F(LaunchCached, HowFarAddressesAreAlignedCounts) {
  const CallTensors own(many_tiles());
  AttentionTensors odd = own.tensors();
  odd.q.shape[3] -= 8, odd.k.shape[3] -= 8;
  attention_into(odd.q, odd.k, odd.v, odd.o, odd.lse);
  odd.q.data = static_cast<const char*>(odd.q.data) + 2;
  const PlanCacheCounts before = plan_cache_counts();
  const int copyings = fake().copyings;
  attention_into(odd.q, odd.k, odd.v, odd.o, odd.lse);
  EXPECT_EQ(plan_cache_counts().misses, before.misses + 1);
  EXPECT_EQ(fake().copyings, copyings + 1);
}

// HEDDLE_FAMILY compares families: each call takes the one that it names at the time.
TEST_F(LaunchCached, TheFamilyThatIsAskedForCounts) {
  const CallTensors own(many_tiles());
  call(own);
  const ScopedVariable family("HEDDLE_FAMILY", nullptr);  // any
  const PlanCacheCounts before = plan_cache_counts();
  call(own);
  EXPECT_EQ(plan_cache_counts().misses, before.misses + 1);
}

// By the contract of plans: their content is not looked at, where they are is.
TEST_F(LaunchCached, KnowsAMasksCapturesByTheirAddresses) {
  const CallTensors own(many_tiles());
  const Tensor ids = Tensor::zeros(DType::i32, {3, 150}).to(kFirst),
               others = Tensor::zeros(DType::i32, {3, 150}).to(kFirst);
  call(own, masked_options(ids));
  const PlanCacheCounts first = plan_cache_counts();
  EXPECT_GT(first.bytes, 0);
  call(own, masked_options(ids));
  EXPECT_EQ(plan_cache_counts().hits, first.hits + 1);
  call(own, masked_options(others));
  EXPECT_EQ(plan_cache_counts().misses, first.misses + 1);
  EXPECT_EQ(plan_cache_counts().plans, first.plans + 1);
}

// The mask may come with the caller's block mask alone; its stored bits are of that memory all the same.
TEST_F(LaunchCached, KnowsTheCapturesOfABlockMasksOwnMask) {
  const CallTensors own(many_tiles());
  const Tensor on_host = Tensor::zeros(DType::i32, {3, 150});
  AttentionOptions options = masked_options(on_host);
  const Sequence whole = {.q_len = 150, .kv_len = 130};
  options.block_mask = std::make_shared<BlockMask>(
      BlockMask::build(options.mask_mod, {64, {whole, whole, whole}}, {384, 640}, options.bindings));
  options.mask_mod = Expr();
  const Tensor ids = on_host.to(kFirst), others = on_host.to(kFirst);
  options.bindings.captures["ids"] = ids;
  call(own, options);
  const PlanCacheCounts first = plan_cache_counts();
  call(own, options);
  EXPECT_EQ(plan_cache_counts().hits, first.hits + 1);
  options.bindings.captures["ids"] = others;
  call(own, options);
  EXPECT_EQ(plan_cache_counts().misses, first.misses + 1);
}

// Where they live on the device they are the run's own, wherever they are.
TEST_F(LaunchCached, LengthsOnTheDeviceComeWithEachCall) {
  const CallTensors own(many_tiles());
  const Tensor lengths = Tensor::zeros(DType::i32, {3}).to(kFirst), others = Tensor::zeros(DType::i32, {3}).to(kFirst);
  AttentionOptions options;
  options.kv_lengths = lengths.view();
  call(own, options);
  EXPECT_EQ(fake().placed.params.kv.data, lengths.data());
  const PlanCacheCounts first = plan_cache_counts();
  options.kv_lengths = others.view();
  call(own, options);
  EXPECT_EQ(plan_cache_counts().hits, first.hits + 1);
  EXPECT_EQ(fake().placed.params.kv.data, others.data());
}

TEST_F(LaunchCached, AStreamThatIsBeingCapturedIsRefused) {
  const CallTensors own;
  const FakeStream stream;
  const ContextScope scope(0);
  check(driver().StreamBeginCapture(stream.handle(), CUstreamCaptureMode::relaxed), "capturing");
  AttentionOptions options;
  options.stream = stream.handle();
  const std::string before = work_done();
  expect_error([&] { call(own, options); }, ErrorCode::invalid_argument,
               testing::HasSubstr("is being captured in a graph"));
  EXPECT_EQ(work_done(), before);
  CUgraph graph = nullptr;
  check(driver().StreamEndCapture(stream.handle(), &graph), "capturing");
  call(own, options);
}

TEST_F(LaunchCached, ThreadsShareAStream) {
  const CallTensors own(many_tiles());
  const FakeStream stream;
  AttentionOptions options;
  options.stream = stream.handle();
  call(own, options);
  const int forwards = fake().forwards;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 20; ++i) call(own, options);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(fake().forwards, forwards + 80);
}

TEST_F(LaunchCached, ForgettingFreesAll) {
  const CallTensors own(many_tiles());
  call(own);
  const int held = fake().allocations - fake().frees, modules = fake().modules - fake().unloads;
  clear_plan_cache();
  EXPECT_LT(fake().allocations - fake().frees, held - 1);  // lists and workspace
  EXPECT_LT(fake().modules - fake().unloads, modules);
}

}  // namespace
}  // namespace heddle::cuda
