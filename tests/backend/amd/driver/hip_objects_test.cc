// HIP and HSA as the backend sees them, against the fakes, each test in a process of its own.
#include "backend/amd/driver/hip_objects.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "backend/amd/driver/hsa.h"
#include "backend/amd/fake_hip/fake_library.h"
#include "backend/cuda/driver/in_child.h"
#include "heddle/error.h"

namespace heddle::amd {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

/// Runs `report` in a process that has the fake HIP, with these variables.
std::string with_fake(const std::function<std::string()>& report,
                      const std::vector<std::pair<const char*, const char*>>& variables = {}) {
  return in_child([&]() -> std::string {
    setenv("HEDDLE_HIP", FAKE_HIP, 1);
    for (const auto& [name, value] : variables) setenv(name, value, 1);
    return report();
  });
}

/// The sentence that `call` throws, with its code's number in front.
std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return fmt::format("{}: {}", static_cast<int>(error.code()), error.what());
  }
  return "nothing was thrown";
}
std::string coded(ErrorCode code, const std::string& sentence) {
  return fmt::format("{}: {}", static_cast<int>(code), sentence);
}

std::string all_devices() {
  std::string text;
  for (const device::AmdCaps& caps : devices()) {
    text += fmt::format("{} {} {} {} CUs LDS {} L2 {} memory {} HIP {}; ", caps.index, caps.name, caps.architecture,
                        caps.compute_units, caps.shared_memory_bytes, caps.l2_bytes, caps.memory_bytes,
                        version_text(caps.runtime_version));
  }
  return text;
}

TEST(AmdDriver, CarriesWhatHipAndHsaSay) {
  EXPECT_EQ(with_fake(all_devices, {{"FAKE_HIP_CHIP", "gfx942"}, {"FAKE_HIP_CUS", "304"}}),
            "0 simulated gfx942 gfx942 304 CUs LDS 65536 L2 6291456 memory 1073741824 HIP 6.0; "
            "1 simulated gfx942 gfx942 305 CUs LDS 65536 L2 6291456 memory 1073741824 HIP 6.0; ");
}

// HIP_VISIBLE_DEVICES takes devices from HIP and not from HSA: they are told apart by their place on the bus.
TEST(AmdDriver, FindsTheDeviceThatHsaNumbersOtherwise) {
  EXPECT_THAT(with_fake(all_devices, {{"FAKE_HIP_SKIPPED", "1"}}), AllOf(HasSubstr("96 CUs"), HasSubstr("97 CUs")));
  EXPECT_THAT(with_fake(all_devices, {{"FAKE_HIP_SKIPPED", "1"}}), testing::Not(HasSubstr("95 CUs")));
}

TEST(AmdDriver, TellsPartsOfOneGpuApart) {
  std::vector<HsaGpu> gpus(3);
  gpus[0].bus_id = gpus[2].bus_id = "0000:03:00";
  gpus[1].bus_id = "0001:2a:1f";
  EXPECT_EQ(find_gpu(gpus, "0000:03:00.0", 0), &gpus[0]);
  EXPECT_EQ(find_gpu(gpus, "0000:03:00.0", 1), &gpus[2]);
  EXPECT_EQ(find_gpu(gpus, "0000:03:00.0", 2), nullptr);
  EXPECT_EQ(find_gpu(gpus, "0001:2A:1F.0", 0), &gpus[1]);
}

TEST(AmdDriver, SaysWhyThereIsNone) {
  EXPECT_THAT(with_fake([] { return hip_missing(); }, {{"HEDDLE_HIP", "/nonexistent/libamdhip64.so.6"}}),
              StartsWith("HIP cannot be used: HEDDLE_HIP is '/nonexistent/libamdhip64.so.6'"));
  EXPECT_THAT(with_fake([] { return hip_missing(); }, {{"FAKE_HIP_DEVICES", "0"}}),
              AllOf(StartsWith("HIP ("), HasSubstr("does not start: hipErrorInvalidDevice")));
  EXPECT_THAT(with_fake([] { return hip_missing(); }, {{"FAKE_HIP_FAILS", "hipGetDeviceCount=100"}}),
              testing::StrEq("HIP lists no device"));
  EXPECT_THAT(with_fake([] { return hip_missing(); }, {{"FAKE_HIP_VERSION", "40300000"}}),
              HasSubstr("is HIP 4.3; 5.0 is the oldest accepted"));
  EXPECT_THAT(with_fake([] { return hip_missing(); }, {{"HEDDLE_HIP", FAKE_HSA}}),
              HasSubstr("is no HIP: it does not tell its version"));
}

TEST(AmdDriver, AllocatesOrSaysWhatIsFree) {
  EXPECT_EQ(with_fake(
                [] {
                  const DeviceMemory half(1, 600000);
                  return error_of([] { DeviceMemory(1, 500000); });
                },
                {{"FAKE_HIP_BYTES", "1048576"}}),
            coded(ErrorCode::out_of_memory,
                  "cannot allocate 500000 bytes (0.5 MiB) on ROCm device 1: 0.4 MiB of 1.0 MiB are free"));
  EXPECT_EQ(with_fake([] { return error_of([] { DeviceMemory(2, 1); }); }),
            coded(ErrorCode::invalid_argument, "there is no ROCm device 2; this machine has 2"));
}

TEST(AmdDriver, CopiesAndRestoresTheCurrentDevice) {
  EXPECT_EQ(with_fake([]() -> std::string {
              int current = -1;
              hip().SetDevice(1);
              {
                const DeviceMemory memory(0, 4);
                const int in = 77;
                int out = 0;
                copy_and_wait(0, memory.data(), &in, 4);
                copy_and_wait(0, &out, memory.data(), 4);
                hip().GetDevice(&current);
                if (out != 77) return "lost";
              }
              const auto allocated = fake_hip<std::size_t()>("fake_hip_allocated")();
              return fmt::format("device {}, {} bytes stay", current, allocated);
            }),
            "device 1, 0 bytes stay");
}

// HIP 6 numbers the types of memory anew. For memory that it does not know it answers an error, which others must not
// see.
TEST(AmdDriver, TellsThePlaceOfAPointer) {
  const auto report = [] {
    const DeviceMemory memory(1, 100);
    int here = 0;
    const int there = device_of(static_cast<char*>(memory.data()) + 99), host = device_of(&here);
    const int clean = hip().PeekAtLastError();
    void* nothing = nullptr;
    hip().Malloc(&nothing, std::size_t{1} << 50);  // somebody's own error
    device_of(&here);
    return fmt::format("{} {} {}, error {} then {}", there, host, device_of(nullptr), clean,
                       hip().PeekAtLastError() != kHipSuccess ? "kept" : "lost");
  };
  EXPECT_EQ(with_fake(report), "1 -1 -1, error 0 then kept");
  EXPECT_EQ(with_fake(report, {{"FAKE_HIP_VERSION", "50200000"}}), "1 -1 -1, error 0 then kept");
}

TEST(AmdDriver, KnowsACapturedStream) {
  EXPECT_EQ(with_fake([] {
              void* stream = nullptr;
              fake_hip<int(void**, unsigned)>("hipStreamCreateWithFlags")(&stream, 1);
              const bool before = is_capturing(0, stream);
              fake_hip<void(void*)>("fake_hip_capture")(stream);
              return fmt::format("{} {} {}", before, is_capturing(0, stream), is_capturing(0, nullptr));
            }),
            "false true false");
}

TEST(AmdDriver, SaysWhatFailed) {
  EXPECT_EQ(with_fake([] { return error_of([] { Module(0, std::vector<char>(64)); }); }),
            coded(ErrorCode::device,
                  "loading a kernel for gfx1100 into HIP 6.0: hipErrorInvalidImage (hipErrorInvalidImage)"));
}

}  // namespace
}  // namespace heddle::amd
