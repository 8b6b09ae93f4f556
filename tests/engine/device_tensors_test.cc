// Tensors on GPUs: allocation and copies, against the fake driver, each test in a process of its own.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

#include "backend/cuda/driver/cuda_objects.h"
#include "backend/cuda/driver/fake_driver.h"
#include "backend/cuda/driver/in_child.h"
#include "heddle/devices.h"
#include "heddle/error.h"
#include "heddle/tensor.h"

namespace heddle {
namespace {

using testing::StartsWith;

constexpr Device kFirst{DeviceKind::cuda, 0};
constexpr Device kSecond{DeviceKind::cuda, 1};
constexpr Device kCpu{};

template <class Report>
std::string with_fake(Report report) {
  return in_child([&]() -> std::string {
    setenv("HEDDLE_CUDA_DRIVER", FAKE_DRIVER, 1);
    return report();
  });
}

/// 0, 1, 2, ... as i32 of that shape.
Tensor counted(const Dims& shape) {
  Tensor tensor = Tensor::empty(DType::i32, shape);
  auto* values = static_cast<std::int32_t*>(tensor.data());
  std::iota(values, values + tensor.count(), 0);
  return tensor;
}

/// "cpu [2, 2]: 0 1 2 3", after whatever copy brings it to the host.
std::string text_of(const Tensor& tensor) {
  const Tensor host = tensor.view().device.kind == DeviceKind::cpu ? tensor : tensor.to(kCpu);
  std::string text =
      fmt::format("{} {}:", tensor.view().device.kind == DeviceKind::cpu ? "cpu" : "cuda", to_string(tensor.shape()));
  if (!is_contiguous(host)) return text + " not contiguous";
  for (std::int64_t i = 0; i < host.count(); ++i) {
    text += fmt::format(" {}", static_cast<const std::int32_t*>(host.data())[i]);
  }
  return text;
}

template <class Call>
std::string error_of(Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    return (error.code() == ErrorCode::unsupported     ? "unsupported: "
            : error.code() == ErrorCode::out_of_memory ? "out of memory: "
                                                       : "other: ") +
           std::string(error.what());
  }
  return "nothing was thrown";
}

TEST(DeviceTensors, AreAllocatedWhereAskedAndFreedWithTheLastCopy) {
  EXPECT_EQ(with_fake([]() -> std::string {
              const Tensor host = Tensor::empty_on(kCpu, DType::f32, {3});
              if (cuda::fake_driver(FAKE_DRIVER) != nullptr) return "a CPU tensor started the driver";
              {
                Tensor tensor = Tensor::empty_on(kSecond, DType::bf16, {2, 3});
                const Tensor shared = tensor;
                if (cuda::location_of(tensor.data()).device != 1) return "the memory is not on device 1";
                if (tensor.view().device != kSecond || tensor.dtype() != DType::bf16) return "wrong view";
                if (!is_contiguous(tensor) || host.view().device != kCpu) return "wrong view";
                tensor = Tensor();
                if (cuda::fake_driver(FAKE_DRIVER)->frees != 0) return "freed while a copy lives";
              }
              return fmt::format("{} freed", cuda::fake_driver(FAKE_DRIVER)->frees.load());
            }),
            "1 freed");
}

TEST(DeviceTensors, GoToAGpuAndBack) {
  EXPECT_EQ(with_fake([] { return text_of(counted({2, 3}).to(kSecond).to(kFirst)); }), "cuda [2, 3]: 0 1 2 3 4 5");
  EXPECT_EQ(with_fake([] { return text_of(counted({2, 3}).to(kFirst).to(kCpu)); }), "cpu [2, 3]: 0 1 2 3 4 5");
}

TEST(DeviceTensors, ACopyIsContiguousWhateverTheView) {
  const auto turned = [](const Tensor& tensor) {
    return Tensor::adopt(permute(tensor.view(), {1, 0}), std::make_shared<Tensor>(tensor));
  };
  EXPECT_EQ(with_fake([&] { return text_of(turned(counted({2, 3})).to(kFirst)); }), "cuda [3, 2]: 0 3 1 4 2 5");
  EXPECT_EQ(with_fake([&] { return text_of(turned(counted({2, 3}).to(kFirst)).to(kCpu)); }), "cpu [3, 2]: 0 3 1 4 2 5");
  EXPECT_EQ(with_fake([&] {
              return text_of(turned(counted({2, 3}).to(kFirst)).to(kSecond));
            }),
            "cuda [3, 2]: 0 3 1 4 2 5");
}

TEST(DeviceTensors, ViewsOfAGpuMayRunBackwardsAndRepeat) {
  EXPECT_EQ(with_fake([] {
              const Tensor there = counted({8}).to(kFirst);
              auto* last = static_cast<std::int32_t*>(there.data()) + 7;
              // Elements 7 5 3, each twice: the fake refuses a copy that goes past the tensor.
              const TensorView view(last, DType::i32, {3, 2}, {-2, 0}, kFirst);
              return text_of(Tensor::adopt(view, std::make_shared<Tensor>(there)).to(kCpu));
            }),
            "cpu [3, 2]: 7 7 5 5 3 3");
}

TEST(DeviceTensors, MayBeEmpty) {
  EXPECT_EQ(with_fake([] { return text_of(counted({2, 0}).to(kFirst).to(kSecond).to(kCpu)); }), "cpu [2, 0]:");
}

TEST(DeviceTensors, ADeviceThatIsNotThereIsUnsupportedWithTheReason) {
  const auto allocate = [](Device device) {
    return with_fake([&] { return error_of([&] { Tensor::empty_on(device, DType::f32, {1}); }); });
  };
  EXPECT_EQ(allocate({DeviceKind::cuda, 2}), "unsupported: there is no CUDA device 2; this machine has 2");
  EXPECT_EQ(allocate({DeviceKind::cuda, -1}), "unsupported: there is no CUDA device -1; this machine has 2");
  EXPECT_EQ(allocate({DeviceKind::cpu, 1}), "unsupported: there is no CPU 1; its only index is 0");
  EXPECT_THAT(allocate({DeviceKind::rocm, 0}), StartsWith("unsupported: HIP "));
  EXPECT_THAT(in_child([] {
                setenv("HEDDLE_CUDA_DRIVER", "/no/such/file", 1);
                return error_of([] { counted({1}).to(kFirst); });
              }),
              StartsWith("unsupported: the CUDA driver cannot be used: HEDDLE_CUDA_DRIVER is '/no/such/file'"));
}

TEST(DeviceTensors, WhatDoesNotFitIsOutOfMemory) {
  const auto allocate = [](std::int64_t count) {
    return with_fake([&] { return error_of([&] { Tensor::empty_on(kFirst, DType::f64, {count}); }); });
  };
  EXPECT_EQ(allocate(std::int64_t{1} << 40),
            "out of memory: cannot allocate 8796093022208 bytes (8192.0 GiB) on CUDA device 0: 1.0 GiB of 1.0 GiB are "
            "free");
  EXPECT_EQ(allocate(std::int64_t{1} << 61),
            "out of memory: cannot allocate a f64 tensor of shape [2305843009213693952]");
}

TEST(Devices, ListTheCpuThenTheGpus) {
  EXPECT_EQ(with_fake([]() -> std::string {
              std::string text = missing(DeviceKind::cuda);
              for (const DeviceInfo& device : devices()) text += device.kind + " ";
              return text;
            }),
            "cpu cuda cuda ");
}

}  // namespace
}  // namespace heddle
