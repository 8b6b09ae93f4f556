// AttentionPlan on a GPU: runs and plans that are refused.
#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <functional>
#include <string>

#include "expect_error.h"
#include "kernels/cuda/gpu_plan_cases.h"

namespace heddle::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// A faulty run is refused before anything is launched: the outputs stay as they were.
void expect_refused(GpuCase& c, const std::function<void(AttentionTensors&)>& spoil, ErrorCode code,
                    const testing::Matcher<std::string>& sentence) {
  AttentionTensors tensors = c.tensors();
  const AttentionPlan plan(tensors, c.options());
  spoil(tensors);
  c.upload();
  const Outputs before = outputs_of(c.host());
  expect_error([&] { plan.run(tensors, {.workspace = c.workspace()}); }, code, sentence);
  c.download();
  EXPECT_EQ(outputs_of(c.host()), before);
}

template <class Void>
Void* moved(Void* data, std::int64_t bytes) {
  return const_cast<std::byte*>(static_cast<const std::byte*>(data)) + bytes;
}

TEST_F(GpuPlan, RefusesMisalignedMemory) {
  GpuCase c(spec_of_plan(40));
  const auto refused = [&](const std::function<void(AttentionTensors&)>& spoil, const char* name) {
    expect_refused(c, spoil, ErrorCode::invalid_argument, AllOf(HasSubstr(name), HasSubstr("16")));
  };
  refused([](AttentionTensors& t) { t.q.data = moved(t.q.data, 2); }, "q ");
  refused([](AttentionTensors& t) { t.k.data = moved(t.k.data, 8); }, "k ");
  refused([](AttentionTensors& t) { t.v.data = moved(t.v.data, 14); }, "v ");
  refused([](AttentionTensors& t) { t.o.data = moved(t.o.data, 4); }, "o ");
}

TEST_F(GpuPlan, RefusesMemoryThatIsElsewhere) {
  GpuCase c(spec_of_plan(41));
  const AttentionTensors host = c.host().tensors();
  const std::string sentence = " is on cuda:0, but its data is in host memory; memory of cuda:0 is accepted";
  expect_refused(
      c, [&](AttentionTensors& t) { t.k.data = host.k.data; }, ErrorCode::invalid_argument, "k" + sentence);
  expect_refused(
      c, [&](AttentionTensors& t) { t.lse->data = host.lse->data; }, ErrorCode::invalid_argument, "lse" + sentence);
  expect_refused(
      c, [&](AttentionTensors& t) { t.v.data = nullptr; }, ErrorCode::invalid_argument,
      HasSubstr("v is bf16 [2, 2, 333, 128] but its data is null"));
  expect_refused(
      c, [&](AttentionTensors& t) { t.o.data = const_cast<void*>(t.q.data); }, ErrorCode::invalid_argument,
      HasSubstr("o overlaps q in memory"));
  expect_refused(
      c, [&](AttentionTensors& t) { t.q.device = {}; }, ErrorCode::invalid_argument,
      "q is on the CPU; cuda:0, as planned, is accepted");
  AttentionTensors nowhere = c.tensors();
  for (ConstTensorView* view : {&nowhere.q, &nowhere.k, &nowhere.v}) view->device.index = 99;
  nowhere.o.device.index = nowhere.lse->device.index = 99;
  expect_error([&] { AttentionPlan(nowhere, c.options()); }, ErrorCode::unsupported, HasSubstr("q is on cuda:99"));
}

TEST_F(GpuPlan, RefusesWorkspacesThatAreElsewhere) {
  GpuCase c(many_tiles(45));
  const AttentionPlan plan(c.tensors(), c.options());
  ASSERT_EQ(plan.workspace_bytes(), 64);
  alignas(64) std::array<std::byte, 64> host{};
  expect_error([&] { plan.run(c.tensors()); }, ErrorCode::invalid_argument,
               HasSubstr("workspace is null; 64 bytes on cuda:0 are accepted"));
  expect_error([&] { plan.run(c.tensors(), {.workspace = host.data()}); }, ErrorCode::invalid_argument,
               "workspace is in host memory; memory of cuda:0 is accepted");
  expect_error([&] { plan.run(c.tensors(), {.workspace = moved(c.workspace(), 8)}); }, ErrorCode::invalid_argument,
               HasSubstr("64 divides"));
}

TEST_F(GpuPlan, RefusesWhatNoKernelTakes) {
  GpuCase c(spec_of_plan(43));
  AttentionOptions options = c.options();
  options.backend = BackendChoice::cpu;
  expect_error([&] { AttentionPlan(c.tensors(), options); }, ErrorCode::unsupported, HasSubstr("q is on cuda:0"));
}

}  // namespace
}  // namespace heddle::test
