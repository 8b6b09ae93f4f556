// Refusals of a run, before it launches anything, and of planning.
#include <fmt/format.h>

#include <functional>
#include <span>

#include "expect_error.h"
#include "launch_case.h"

namespace heddle::cuda {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Matcher;
using testing::StartsWith;

class LaunchRefusals : public LaunchCase {
 protected:
  /// The run throws, before the driver is asked for anything that takes time or memory.
  static void expect_refused(const AttentionPlan& plan, const AttentionTensors& tensors, const RunOptions& options,
                             ErrorCode code, const Matcher<std::string>& sentence) {
    const std::string before = work_done();
    const int launches = fake().launches;
    expect_error([&] { plan.run(tensors, options); }, code, sentence);
    EXPECT_EQ(fake().launches, launches);
    EXPECT_EQ(work_done(), before);
  }
};

struct NamedData {
  const char* name;
  std::function<void(AttentionTensors&, void*)> set;
};
const NamedData kTensors[] = {{"q", [](AttentionTensors& t, void* data) { t.q.data = data; }},
                              {"k", [](AttentionTensors& t, void* data) { t.k.data = data; }},
                              {"v", [](AttentionTensors& t, void* data) { t.v.data = data; }},
                              {"o", [](AttentionTensors& t, void* data) { t.o.data = data; }},
                              {"lse", [](AttentionTensors& t, void* data) { t.lse->data = data; }}};

TEST_F(LaunchRefusals, AnAddressThatTmaDoesNotTake) {
  const CallTensors call;
  const AttentionPlan plan(call.tensors(), {});
  const Tensor spare = Tensor::empty_on(kFirst, DType::u8, {1 << 20});
  for (const auto& [name, set] : std::span(kTensors).first(4)) {  // lse is written by plain stores
    AttentionTensors tensors = call.tensors();
    for (const int shift : {2, 4, 8, 14}) {
      void* data = static_cast<std::byte*>(spare.data()) + shift;
      set(tensors, data);
      expect_refused(plan, tensors, {}, ErrorCode::invalid_argument,
                     AllOf(StartsWith(fmt::format("{} is at {}", name, data)), HasSubstr("that 16 divides")));
    }
    set(tensors, static_cast<std::byte*>(spare.data()) + 16);
    plan.run(tensors);
  }
  AttentionTensors tensors = call.tensors();
  tensors.lse->data = static_cast<std::byte*>(spare.data()) + 4;
  plan.run(tensors);
}

TEST_F(LaunchRefusals, AnAddressBetweenTwoElementsOfAnOutputOfAnotherType) {
  const CallTensors call({.o_dtype = DType::f32});
  const AttentionPlan plan(call.tensors(), {});
  AttentionTensors tensors = call.tensors();
  tensors.o.data = static_cast<std::byte*>(tensors.o.data) + 4;
  expect_refused(plan, tensors, {}, ErrorCode::invalid_argument,
                 AllOf(StartsWith(fmt::format("o is at {}", fmt::ptr(tensors.o.data))), HasSubstr("that 8 divides")));
  const AttentionPlan alone(tensors, {});  // planned for it
  EXPECT_THAT(alone.explain(), HasSubstr("o is stored by threads, 4 bytes at a time: its address"));
  alone.run(tensors);
}

TEST_F(LaunchRefusals, MemoryThatIsElsewhere) {
  const CallTensors call;
  const AttentionPlan plan(call.tensors(), {});
  const Tensor host = Tensor::empty(DType::u8, {1 << 20}), other = Tensor::empty_on(kSecond, DType::u8, {1 << 20});
  for (const auto& [name, set] : kTensors) {
    for (const auto& [memory, where] : {std::pair(&host, "host memory"), {&other, "the memory of cuda:1"}}) {
      AttentionTensors tensors = call.tensors();
      set(tensors, memory->data());
      expect_refused(plan, tensors, {}, ErrorCode::invalid_argument,
                     fmt::format("{} is on cuda:0, but its data is in {}; memory of cuda:0 is accepted", name, where));
    }
  }
}

TEST_F(LaunchRefusals, WorkspacesThatAreMissingShiftedOrElsewhere) {
  const CallTensors call(many_tiles());
  const AttentionPlan plan(call.tensors(), {});
  const Tensor host = Tensor::empty(DType::u8, {64}), other = Tensor::empty_on(kSecond, DType::u8, {64});
  const auto refused = [&](void* workspace, const Matcher<std::string>& sentence) {
    expect_refused(plan, call.tensors(), {.workspace = workspace}, ErrorCode::invalid_argument, sentence);
  };
  refused(nullptr, "workspace is null; 64 bytes on cuda:0 are accepted, since a run on a GPU allocates nothing");
  refused(host.data(), "workspace is in host memory; memory of cuda:0 is accepted");
  refused(other.data(), "workspace is in the memory of cuda:1; memory of cuda:0 is accepted");
  refused(static_cast<std::byte*>(call.workspace()) + 8,
          AllOf(StartsWith("workspace is at "), HasSubstr("an address that 64 divides is accepted")));
}

TEST_F(LaunchRefusals, TheStreamOfAnotherDevice) {
  const CallTensors call;
  const AttentionPlan plan(call.tensors(), {});
  const FakeStream other(kSecond);
  expect_refused(plan, call.tensors(), {.stream = other.handle()}, ErrorCode::device,
                 StartsWith("launching forward_sm90: "));
}

// A plan for tensors that TMA takes refuses other addresses; a plan that copies takes any.
TEST_F(LaunchRefusals, AnAddressLessAlignedThanThePlanned) {
  const CallTensors call;
  const Tensor spare = Tensor::empty_on(kFirst, DType::u8, {1 << 20});
  const auto at = [&](int shift) { return static_cast<std::byte*>(spare.data()) + shift; };
  AttentionTensors tensors = call.tensors();
  const AttentionPlan aligned(tensors, {});
  tensors.k.data = at(8);
  expect_refused(aligned, tensors, {}, ErrorCode::invalid_argument,
                 AllOf(StartsWith(fmt::format("k is at {}", static_cast<void*>(at(8)))), HasSubstr("that 16 divides")));
  const AttentionPlan plan(tensors, {});
  EXPECT_THAT(plan.explain(), HasSubstr("k is copied into the workspace by each run: its address"));
  for (const int shift : {4, 8, 16, 6}) {
    tensors.k.data = at(shift);
    Tensor workspace;
    run_in(workspace, plan, tensors);
    EXPECT_EQ(fake().copied.params.tensors[0].from, static_cast<void*>(at(shift)));
    EXPECT_EQ(fake().copied.params.tensors[0].width, shift == 6 ? 2 : shift);
  }
  expect_refused(plan, tensors, {}, ErrorCode::invalid_argument, HasSubstr("workspace"));
}

TEST_F(LaunchRefusals, NoStrides) {
  const CallTensors call;
  AttentionTensors tensors = call.tensors();
  tensors.k.strides[1] = (std::int64_t{1} << 39) - 8;  // the longest; the fake's memory is not touched
  EXPECT_NO_THROW(AttentionPlan(tensors, {}).run(tensors));
  EXPECT_EQ(last_launch().maps[1].strides[1], (std::uint64_t{1} << 40) - 16);
  tensors.k.strides = {0, 0, 0, 1};
  EXPECT_NO_THROW(AttentionPlan(tensors, {}).run(tensors));
  EXPECT_THAT(std::span(last_launch().maps[1].strides, 3), testing::Each(0U));
}

}  // namespace
}  // namespace heddle::cuda
