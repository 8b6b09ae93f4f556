// The driver's room on a real GPU: what the fake cannot show.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "backend/cuda/driver/cuda_objects.h"
#include "expect_error.h"
#include "heddle/tensor.h"
#include "tensor_map_cases.h"

namespace heddle::cuda {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;

// Adds 1 to the first `count` of some integers. PTX, which the driver compiles itself.
constexpr std::string_view kAddOne = R"(
.version 7.8
.target sm_52
.address_size 64
.visible .entry add_one(.param .u64 values, .param .u32 count) {
  .reg .pred %past;
  .reg .b32 %n<6>;
  .reg .b64 %a<4>;
  ld.param.u64 %a1, [values];
  ld.param.u32 %n1, [count];
  mov.u32 %n2, %ctaid.x;
  mov.u32 %n3, %ntid.x;
  mov.u32 %n4, %tid.x;
  mad.lo.s32 %n2, %n2, %n3, %n4;
  setp.ge.u32 %past, %n2, %n1;
  @%past ret;
  cvta.to.global.u64 %a1, %a1;
  mul.wide.u32 %a2, %n2, 4;
  add.s64 %a3, %a1, %a2;
  ld.global.u32 %n5, [%a3];
  add.s32 %n5, %n5, 1;
  st.global.u32 [%a3], %n5;
  ret;
}
)";

/// With the zero that ends a PTX text.
std::span<const char> image() { return {kAddOne.data(), kAddOne.size() + 1}; }

class Gpu : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string missing = driver_missing(); !missing.empty()) GTEST_SKIP() << missing;
  }
};

CUcontext current_context() {
  CUcontext context = nullptr;
  check(driver().CtxGetCurrent(&context), "asking for the context");
  return context;
}

/// Device memory that holds these integers, and back.
DeviceMemory upload(const std::vector<int>& values) {
  DeviceMemory memory(0, values.size() * sizeof(int));
  copy_and_wait(0, memory.data(), values.data(), memory.bytes());
  return memory;
}
std::vector<int> download(const DeviceMemory& memory) {
  std::vector<int> values(memory.bytes() / sizeof(int));
  copy_and_wait(0, values.data(), memory.data(), memory.bytes());
  return values;
}

void launch_add_one(CUfunction function, const DeviceMemory& memory, CUstream stream) {
  const CUlaunchConfig config{.gridDimX = 4,
                              .gridDimY = 1,
                              .gridDimZ = 1,
                              .blockDimX = 256,
                              .blockDimY = 1,
                              .blockDimZ = 1,
                              .sharedMemBytes = 0,
                              .hStream = stream,
                              .attrs = nullptr,
                              .numAttrs = 0};
  void* values = memory.data();
  auto count = static_cast<unsigned>(memory.bytes() / sizeof(int));
  void* parameters[] = {&values, &count};
  check(driver().LaunchKernelEx(&config, function, parameters, nullptr), "launching");
}

TEST_F(Gpu, TellsOfItself) {
  const device::CudaCaps& caps = devices().front();
  EXPECT_NE(caps.name, "");
  EXPECT_GE(caps.driver_version, 12000);
  EXPECT_GE(caps.major, 5);
  EXPECT_GT(caps.multiprocessors, 0);
  EXPECT_GE(caps.shared_memory_bytes, 48 << 10);
  EXPECT_GT(caps.l2_bytes, 0);
  EXPECT_GT(caps.memory_bytes, 1LL << 30);
}

TEST_F(Gpu, AScopeLeavesEveryThreadAsItWas) {
  std::thread([] {
    EXPECT_EQ(current_context(), nullptr);
    {
      const ContextScope scope(0);
      EXPECT_EQ(current_context(), primary_context(0));
    }
    EXPECT_EQ(current_context(), nullptr);
  }).join();
}

TEST_F(Gpu, MemoryKeepsWhatIsCopiedAndKnowsItsPlace) {
  std::vector<int> values(1000);
  std::iota(values.begin(), values.end(), 7);
  const DeviceMemory memory = upload(values);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory.data()) % 256, 0u);
  EXPECT_EQ(download(memory), values);
  EXPECT_EQ(location_of(memory.data()).device, 0);
  EXPECT_EQ(location_of(static_cast<const char*>(memory.data()) + 3999).device, 0);
  EXPECT_EQ(location_of(values.data()).device, -1);
}

TEST_F(Gpu, MoreMemoryThanThereIs) {
  const auto bytes = static_cast<std::size_t>(devices().front().memory_bytes) * 2;
  expect_error([&] { DeviceMemory(0, bytes); }, ErrorCode::out_of_memory,
               ContainsRegex("cannot allocate [0-9]+ bytes .* on CUDA device 0: [0-9.]+ .iB of [0-9.]+ .iB are free"));
  EXPECT_EQ(download(upload({5})), std::vector<int>{5});  // and goes on
}

TEST_F(Gpu, RunsAKernelOnAStream) {
  const ContextScope scope(0);
  const Module module(0, image());
  CUfunction function = module.function("add_one", 0);
  CUstream stream = nullptr;
  check(driver().StreamCreate(&stream, CUstream_flags::non_blocking), "making a stream");
  const DeviceMemory memory = upload(std::vector<int>(1000, 41));
  launch_add_one(function, memory, stream);
  check(driver().StreamSynchronize(stream), "waiting");
  EXPECT_EQ(download(memory), std::vector<int>(1000, 42));
  CUcontext context = nullptr;
  check(driver().StreamGetCtx(stream, &context), "asking for the stream's context");
  EXPECT_EQ(context, primary_context(0));
  driver().StreamDestroy(stream);
}

TEST_F(Gpu, AGraphCapturesALaunch) {
  const ContextScope scope(0);
  const Driver& cu = driver();
  const Module module(0, image());
  CUfunction function = module.function("add_one", 0);
  const DeviceMemory memory = upload({0, 0, 0});
  CUstream stream = nullptr;
  CUgraph graph = nullptr;
  CUgraphExec executable = nullptr;
  auto status = CUstreamCaptureStatus::invalidated;
  check(cu.StreamCreate(&stream, CUstream_flags::non_blocking), "making a stream");
  check(cu.StreamIsCapturing(stream, &status), "asking a stream");
  EXPECT_EQ(status, CUstreamCaptureStatus::none);
  // In the strictest mode: nothing but the launch may happen.
  check(cu.StreamBeginCapture(stream, CUstreamCaptureMode::global), "capturing");
  check(cu.StreamIsCapturing(stream, &status), "asking a stream");
  EXPECT_EQ(status, CUstreamCaptureStatus::active);
  launch_add_one(function, memory, stream);
  EXPECT_EQ(location_of(memory.data()).device, 0);  // allowed meanwhile
  check(cu.StreamEndCapture(stream, &graph), "ending a capture");
  check(cu.GraphInstantiate(&executable, graph, 0), "instantiating a graph");
  EXPECT_EQ(download(memory), std::vector<int>(3, 0));
  for (int i = 0; i < 2; ++i) check(cu.GraphLaunch(executable, stream), "launching a graph");
  check(cu.StreamSynchronize(stream), "waiting");
  EXPECT_EQ(download(memory), std::vector<int>(3, 2));
  cu.GraphExecDestroy(executable);
  cu.GraphDestroy(graph);
  cu.StreamDestroy(stream);
}

TEST_F(Gpu, EventsTellTime) {
  const ContextScope scope(0);
  const Driver& cu = driver();
  CUevent begin = nullptr;
  CUevent end = nullptr;
  float milliseconds = -1;
  check(cu.EventCreate(&begin, CUevent_flags::timed), "making an event");
  check(cu.EventCreate(&end, CUevent_flags::timed), "making an event");
  check(cu.EventRecord(begin, nullptr), "recording");
  check(cu.EventRecord(end, nullptr), "recording");
  check(cu.EventSynchronize(end), "waiting");
  check(cu.EventElapsedTime(&milliseconds, begin, end), "reading the time");
  EXPECT_GE(milliseconds, 0);
  EXPECT_LT(milliseconds, 1000);
  cu.EventDestroy(begin);
  cu.EventDestroy(end);
}

TEST_F(Gpu, BadImagesAndNamesAreErrors) {
  expect_error([] { Module(0, std::string_view("this is no kernel\0", 18)); }, ErrorCode::device,
               HasSubstr("loading a compiled kernel: CUDA_ERROR_"));
  const Module module(0, image());
  expect_error([&] { module.function("add_two", 0); }, ErrorCode::device,
               HasSubstr("looking for the kernel 'add_two': CUDA_ERROR_NOT_FOUND"));
  expect_error([&] { module.function("add_one", 1 << 20); }, ErrorCode::device,
               HasSubstr("allowing the kernel 'add_one' 1048576 bytes of shared memory: CUDA_ERROR_INVALID_VALUE"));
}

TEST_F(Gpu, TensorMapsAreEncodedAndMoved) {
  if (devices().front().major < 9) GTEST_SKIP() << devices().front().name << " has no TMA";
  const DeviceMemory memory(0, 4096);
  const ContextScope scope(0);
  const std::uint64_t extents[] = {64, 32};
  const std::uint64_t strides[] = {128};
  const std::uint32_t box[] = {64, 32};
  const std::uint32_t steps[] = {1, 1};
  const auto encode = [&](CUtensorMap& map, void* address) {
    return driver().TensorMapEncodeTiled(&map, CUtensorMapDataType::bfloat16, 2, address, extents, strides, box, steps,
                                         CUtensorMapInterleave::none, CUtensorMapSwizzle::bytes128,
                                         CUtensorMapL2promotion::bytes128, CUtensorMapFloatOOBfill::zeros);
  };
  char* data = static_cast<char*>(memory.data());
  CUtensorMap first{};
  CUtensorMap moved{};
  CUtensorMap second{};
  EXPECT_EQ(encode(first, data), CUDA_SUCCESS);
  EXPECT_EQ(encode(second, data + 1024), CUDA_SUCCESS);
  EXPECT_EQ(encode(moved, data), CUDA_SUCCESS);
  EXPECT_EQ(driver().TensorMapReplaceAddress(&moved, data + 1024), CUDA_SUCCESS);
  EXPECT_NE(std::memcmp(&first, &second, sizeof first), 0);
  EXPECT_EQ(std::memcmp(&moved, &second, sizeof first), 0);
  EXPECT_EQ(encode(first, data + 8), CUDA_ERROR_INVALID_VALUE);  // 16 bytes of alignment
}

TEST_F(Gpu, TensorMapsAreRefusedAsTheFakeRefuses) {
  if (devices().front().major < 9) GTEST_SKIP() << devices().front().name << " has no TMA";
  EXPECT_EQ(tensor_map_surprises(), "");
}

TEST_F(Gpu, TensorsGoThereAndBack) {
  Tensor host = Tensor::empty(DType::i32, {3, 5});
  std::iota(static_cast<int*>(host.data()), static_cast<int*>(host.data()) + 15, 0);
  const Tensor there = host.to({DeviceKind::cuda, 0});
  EXPECT_EQ(location_of(there.data()).device, 0);
  const Tensor turned = Tensor::adopt(permute(there.view(), {1, 0}), std::make_shared<Tensor>(there)).to(Device{});
  for (std::int64_t i = 0; i < 5; ++i) {
    for (std::int64_t j = 0; j < 3; ++j) EXPECT_EQ(get_element(turned, {i, j}), static_cast<double>(5 * j + i));
  }
}

}  // namespace
}  // namespace heddle::cuda
