// A plan's memory on a device, from its making to its end, and when memory runs out.
#include <fmt/format.h>

#include <memory>
#include <optional>
#include <thread>

#include "expect_error.h"
#include "launch_case.h"

namespace heddle::cuda {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

class LaunchLife : public LaunchCase {
 protected:
  void TearDown() override {
    EXPECT_EQ(fake().wrong_frees, 0);
    EXPECT_EQ(fake().unloads, fake().modules) << "or in another device's context";
    EXPECT_EQ(fake().pushes, fake().pops);
  }
  static int living_blocks() { return fake().allocations - fake().frees; }
  static int living_modules() { return fake().modules - fake().unloads; }
  static CUcontext current_context() {
    CUcontext context = nullptr;
    check(driver().CtxGetCurrent(&context), "asking for the current context");
    return context;
  }
};

TEST_F(LaunchLife, OneModuleAndOneListEach) {
  const CallTensors call;
  const int blocks = living_blocks();
  {
    const AttentionPlan plan(call.tensors(), {});
    const AttentionPlan shared = plan, other(call.tensors(), {});
    EXPECT_EQ(living_modules(), 2);
    EXPECT_EQ(living_blocks(), blocks + 2);
  }
  EXPECT_EQ(living_modules(), 0);
  EXPECT_EQ(living_blocks(), blocks);
}

TEST_F(LaunchLife, LeavesTheCallersContextAlone) {
  for (const bool current : {false, true}) {
    const CallTensors call({.device = kSecond});
    std::optional<ContextScope> scope;
    if (current) scope.emplace(0);
    const CUcontext context = current_context();
    EXPECT_EQ(context != nullptr, current);
    {
      const AttentionPlan plan(call.tensors(), {});
      EXPECT_EQ(current_context(), context);
      plan.run(call.tensors());
      EXPECT_EQ(current_context(), context);
      EXPECT_EQ(last_launch().device, 1);
    }
    EXPECT_EQ(current_context(), context);
    AttentionTensors wrong = call.tensors();
    const AttentionPlan plan(wrong, {});
    wrong.q.data = static_cast<const std::byte*>(wrong.q.data) + 8;
    EXPECT_THROW(plan.run(wrong), Error);
    EXPECT_EQ(current_context(), context);
  }
}

TEST_F(LaunchLife, EndsOnAnyThread) {
  const CallTensors call({.device = kSecond});
  auto plan = std::make_unique<AttentionPlan>(call.tensors(), AttentionOptions());
  std::thread([&] { plan.reset(); }).join();
  EXPECT_EQ(living_modules(), 0);
}

/// Takes what is left of a device.
DeviceMemory all_memory() {
  const ContextScope scope(0);
  std::size_t free = 0, total = 0;
  check(driver().MemGetInfo(&free, &total), "asking for free memory");
  return {0, free};
}

TEST_F(LaunchLife, WithoutMemoryForItsListsLeavesNothingBehind) {
  const CallTensors call;
  const int blocks = living_blocks();
  {
    const DeviceMemory taken = all_memory();
    const int modules = fake().modules;
    expect_error(
        [&] { AttentionPlan(call.tensors(), {}); }, ErrorCode::out_of_memory,
        testing::AllOf(StartsWith("cannot allocate "), HasSubstr("on CUDA device 0: 0.0 MiB of 1.0 GiB are free")));
    EXPECT_EQ(fake().modules, modules + 1);
    EXPECT_EQ(living_modules(), 0);
    EXPECT_EQ(living_blocks(), blocks + 1);
  }
  EXPECT_EQ(living_blocks(), blocks);
  const int forwards = fake().forwards;
  AttentionPlan(call.tensors(), {}).run(call.tensors());
  EXPECT_EQ(fake().forwards, forwards + 1);
}

TEST_F(LaunchLife, AnUpdateBringsOtherLists) {
  const CallTensors call({.dim = 64, .with_lse = false, .dtype = DType::f16});
  const Tensor ids = Tensor::zeros(DType::i32, {2, 150}).to(kFirst);
  AttentionOptions options = masked_options(ids);
  AttentionPlan plan(call.tensors(), options);
  const int blocks = living_blocks();
  plan.run(call.tensors());
  EXPECT_EQ(last_launch().params.tiles.items[0].steps, 1);  // of 128 keys, the first 101 of which may attend
  options.bindings.params["limit"] = 1000.0;
  {
    const DeviceMemory taken = all_memory();
    expect_error([&] { plan.update(options.bindings); }, ErrorCode::out_of_memory, StartsWith("cannot allocate "));
  }
  EXPECT_EQ(living_modules(), 1);
  plan.run(call.tensors());
  EXPECT_EQ(last_launch().params.tiles.items[0].steps, 1);
  plan.update(options.bindings);
  EXPECT_EQ(living_modules(), 1);
  EXPECT_EQ(living_blocks(), blocks);
  plan.run(call.tensors());
  EXPECT_EQ(last_launch().params.tiles.items[0].steps, 2);
}

}  // namespace
}  // namespace heddle::cuda
