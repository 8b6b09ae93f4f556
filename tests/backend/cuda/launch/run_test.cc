// One run is one launch and nothing else, from any number of threads.
#include <map>
#include <set>
#include <thread>
#include <tuple>
#include <vector>

#include "count_allocations.h"
#include "launch_case.h"

namespace heddle::cuda {
namespace {

class LaunchRun : public LaunchCase {};

TEST_F(LaunchRun, IsOneLaunchAndNothingElse) {
  for (const Call& call : {Call{}, many_tiles()}) {
    const CallTensors own(call);
    const FakeStream stream;
    const AttentionPlan plan(own.tensors(), {});
    const ContextScope scope(0);
    const AttentionTensors& tensors = own.tensors();
    const RunOptions options = {.workspace = own.workspace(), .stream = stream.handle()};
    plan.run(tensors, options);  // what the driver and this thread do once
    const std::string before = work_done();
    const int launches = fake().launches, forwards = fake().forwards, pushes = fake().pushes;
    EXPECT_EQ(test::allocations_of([&] { plan.run(tensors, options); }), 0);
    EXPECT_EQ(fake().launches, launches + 1);
    EXPECT_EQ(fake().forwards, forwards + 1);
    EXPECT_EQ(fake().pushes, pushes);
    EXPECT_EQ(work_done(), before);
  }
}

// Planning and a run do not read the lengths, copy them or wait for them.
TEST_F(LaunchRun, WithLengthsOnTheDeviceIsTwoLaunchesAndNothingElse) {
  const CallTensors call(many_tiles());
  const Tensor kv = Tensor::zeros(DType::i32, {3}).to(kFirst);
  AttentionOptions options;
  options.kv_lengths = kv.view();
  const AttentionPlan plan(call.tensors(), options);
  const Tensor workspace = Tensor::empty_on(kFirst, DType::u8, {plan.workspace_bytes()});
  const RunOptions run = {.workspace = workspace.data()};
  const ContextScope scope(0);
  plan.run(call.tensors(), run);
  const std::string before = work_done();
  const int launches = fake().launches;
  EXPECT_EQ(test::allocations_of([&] { plan.run(call.tensors(), run); }), 0);
  EXPECT_EQ(fake().launches, launches + 2);
  EXPECT_EQ(work_done(), before);
}

TEST_F(LaunchRun, LaunchesWhatThePlanSays) {
  for (const Call& call : {Call{}, many_tiles(), Call{.dim = 64, .with_lse = false, .dtype = DType::f16}}) {
    const CallTensors own(call);
    const Tensor ids = Tensor::zeros(DType::i32, {2, 150}).to(kFirst);
    const AttentionPlan plan(own.tensors(), call.dim == 64 ? masked_options(ids) : AttentionOptions());
    const FakeStream stream;
    for (const CUstream given : {stream.handle(), CUstream{}}) {
      plan.run(own.tensors(), {.workspace = own.workspace(), .stream = given});
      const CUlaunchConfig& config = last_launch().config;
      const Planned expected = planned(plan);
      EXPECT_EQ(std::tuple(config.gridDimX, config.gridDimY, config.gridDimZ), std::tuple(expected.grid, 1U, 1U));
      EXPECT_EQ(std::tuple(config.blockDimX, config.blockDimY, config.blockDimZ), std::tuple(expected.threads, 1U, 1U));
      EXPECT_EQ(config.sharedMemBytes, expected.shared_bytes);
      EXPECT_EQ(config.hStream, given);
      EXPECT_EQ(config.numAttrs, 0U);
    }
  }
}

TEST_F(LaunchRun, OfManyTilesTakesOneCtaAMultiprocessor) {
  const CallTensors few, many(many_tiles());
  const FakeLaunch& of_few = launch_of(few);
  EXPECT_EQ(static_cast<int>(of_few.config.gridDimX), of_few.params.tiles.item_count);
  EXPECT_EQ(launch_of(many).config.gridDimX, 132U);
  EXPECT_GT(last_launch().params.tiles.item_count, 132);
  EXPECT_EQ(AttentionPlan(few.tensors(), {}).workspace_bytes(), 0);
  EXPECT_EQ(AttentionPlan(many.tensors(), {}).workspace_bytes(), 64);
}

TEST_F(LaunchRun, WithNothingToComputeLaunchesNothing) {
  for (const Call& call : {Call{.batch = 0}, Call{.q_rows = 0}}) {
    const CallTensors own(call);
    const AttentionPlan plan(own.tensors(), {});
    const int launches = fake().launches;
    plan.run(own.tensors());
    EXPECT_EQ(fake().launches, launches);
  }
}

TEST_F(LaunchRun, HasANumberOfItsOwn) {
  const CallTensors own(many_tiles());
  const AttentionPlan plan(own.tensors(), {}), other(own.tensors(), {});
  std::set<shared::TicketWord> numbers;
  for (int i = 0; i < 20; ++i) {
    (i % 2 == 0 ? plan : other).run(own.tensors(), {.workspace = own.workspace()});
    numbers.insert(last_launch().params.tiles.launch);
  }
  EXPECT_EQ(numbers.size(), 20U);
  EXPECT_GT(*numbers.begin(), 0U);
  EXPECT_LT(*numbers.rbegin(), shared::TicketWord{1} << (64 - shared::kTicketBits));
}

/// Everything that tells one thread's launch from another's.
struct Own {
  CallTensors call{many_tiles()};
  FakeStream stream;

  void expect_in(const FakeLaunch& launch) const {
    const AttentionTensors& tensors = call.tensors();
    const void* const data[] = {tensors.q.data, tensors.k.data, tensors.v.data, tensors.o.data};
    for (int i = 0; i < 4; ++i) EXPECT_EQ(launch.maps[i].address, reinterpret_cast<std::uintptr_t>(data[i])) << i;
    EXPECT_EQ(launch.params.outputs.o, tensors.o.data);
    EXPECT_EQ(launch.params.outputs.lse, tensors.lse->data);
    EXPECT_EQ(static_cast<void*>(launch.params.tiles.tickets), call.workspace());
  }
};

TEST_F(LaunchRun, OfSeveralThreadsEachTakesItsOwn) {
  constexpr int kThreads = 4, kRuns = 100;
  static_assert(kThreads * kRuns <= kFakeLaunchesKept);
  const std::vector<Own> owns(kThreads);
  const AttentionPlan plan(owns[0].call.tensors(), {});
  const int first = fake().forwards;
  std::vector<std::thread> threads;
  for (const Own& own : owns) {
    threads.emplace_back([&] {
      for (int run = 0; run < kRuns; ++run) {
        plan.run(own.call.tensors(), {.workspace = own.call.workspace(), .stream = own.stream.handle()});
      }
    });
  }
  for (std::thread& thread : threads) thread.join();

  ASSERT_EQ(fake().forwards, first + kThreads * kRuns);
  std::map<CUstream, int> runs;
  std::set<shared::TicketWord> numbers;
  for (int n = first; n < fake().forwards; ++n) {
    const FakeLaunch& launch = fake().launched[n % kFakeLaunchesKept];
    for (const Own& own : owns) {
      if (own.stream.handle() == launch.config.hStream) own.expect_in(launch);
    }
    ++runs[launch.config.hStream];
    numbers.insert(launch.params.tiles.launch);
  }
  EXPECT_EQ(std::ssize(numbers), kThreads * kRuns);
  for (const Own& own : owns) EXPECT_EQ(runs[own.stream.handle()], kRuns);
}

}  // namespace
}  // namespace heddle::cuda
