// Contexts, memory, modules and places, against the fake of fake_driver.h, each test in a process of its own.
#include "backend/cuda/driver/cuda_objects.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string_view>
#include <thread>
#include <vector>

#include "fake_driver.h"
#include "heddle/error.h"
#include "in_child.h"
#include "tensor_map_cases.h"

namespace heddle::cuda {
namespace {

/// Runs `report` in a process that has the fake driver.
template <class Report>
std::string with_fake(Report report) {
  return in_child([&]() -> std::string {
    setenv("HEDDLE_CUDA_DRIVER", FAKE_DRIVER, 1);
    return report();
  });
}

const FakeDriver& fake() { return *fake_driver(FAKE_DRIVER); }

CUcontext current_context() {
  CUcontext context = nullptr;
  driver().CtxGetCurrent(&context);
  return context;
}

/// The sentence that `call` throws, with its code's number in front.
template <class Call>
std::string error_of(Call&& call) {
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

TEST(CudaDevices, CarryWhatTheDriverSays) {
  EXPECT_EQ(with_fake([] {
              const device::CudaCaps& second = devices().at(1);
              return fmt::format("{} of {}: {} {}.{}, {} SMs, {} shared, {} L2, {} memory, driver {}", second.index,
                                 devices().size(), second.name, second.major, second.minor, second.multiprocessors,
                                 second.shared_memory_bytes, second.l2_bytes, second.memory_bytes,
                                 second.driver_version);
            }),
            "1 of 2: Fake H200 number 1 9.0, 132 SMs, 232448 shared, 52428800 L2, 1073741824 memory, driver 13000");
}

TEST(CudaContexts, ThePrimaryOneIsRetainedOnceForAllThreads) {
  EXPECT_EQ(with_fake([] {
              std::vector<std::thread> threads;
              for (int i = 0; i < 8; ++i) threads.emplace_back([] { primary_context(1); });
              for (std::thread& thread : threads) thread.join();
              const int retains = fake().retains;
              return fmt::format("{} {}", retains, primary_context(0) != primary_context(1));
            }),
            "1 true");
}

TEST(CudaContexts, AnIndexThatIsNotThere) {
  EXPECT_EQ(with_fake([] { return error_of([] { primary_context(2); }); }),
            coded(ErrorCode::invalid_argument, "there is no CUDA device 2; this machine has 2"));
  EXPECT_EQ(with_fake([] { return error_of([] { ContextScope scope(-1); }); }),
            coded(ErrorCode::invalid_argument, "there is no CUDA device -1; this machine has 2"));
}

TEST(CudaContexts, AScopePushesOnlyWhereItMustAndPopsWhatItPushed) {
  EXPECT_EQ(with_fake([]() -> std::string {
              {
                const ContextScope outer(0);
                const ContextScope same(0);
                if (current_context() != primary_context(0)) return "the scope's context is not current";
                {
                  const ContextScope other(1);
                  if (current_context() != primary_context(1)) return "the inner scope's context is not current";
                }
                if (current_context() != primary_context(0)) return "the outer scope's context is not current again";
              }
              if (current_context() != nullptr) return "a context stayed current";
              return fmt::format("{} pushes, {} pops", fake().pushes.load(), fake().pops.load());
            }),
            "2 pushes, 2 pops");
}

TEST(CudaContexts, AnErrorInsideAScopeLeavesTheThreadAsItWas) {
  EXPECT_EQ(with_fake([]() -> std::string {
              const std::string error = error_of([] { DeviceMemory(0, std::size_t{1} << 40); });
              return fmt::format("{} {}", current_context() == nullptr, fake().pushes.load() - fake().pops.load());
            }),
            "true 0");
}

TEST(CudaMemory, IsFreedOnce) {
  EXPECT_EQ(with_fake([]() -> std::string {
              {
                DeviceMemory first(1, 1000);
                DeviceMemory second(std::move(first));
                if (first.data() != nullptr || first.bytes() != 0) return "a moved-from object still holds memory";
                if (reinterpret_cast<std::uintptr_t>(second.data()) % 256 != 0) return "not aligned";
                DeviceMemory third(0, 10);
                third = std::move(second);  // frees the 10 bytes, on device 0
                if (fake().frees != 1) return "what was assigned over is not freed";
                DeviceMemory& same = third;
                third = std::move(same);
                if (third.bytes() != 1000) return "self-assignment loses memory";
              }
              return fmt::format("{} allocations, {} frees, {} wrong ones", fake().allocations.load(),
                                 fake().frees.load(), fake().wrong_frees.load());
            }),
            "2 allocations, 2 frees, 0 wrong ones");
}

TEST(CudaMemory, NoBytesAreNoAllocationButTheDeviceMustBeThere) {
  EXPECT_EQ(with_fake([]() -> std::string {
              const DeviceMemory none(0, 0);
              return fmt::format("{} {} {}", none.data() == nullptr, fake().allocations.load(),
                                 error_of([] { DeviceMemory(5, 0); }) != "nothing was thrown");
            }),
            "true 0 true");
}

TEST(CudaMemory, WhatDoesNotFitSaysWhatIsFree) {
  EXPECT_EQ(with_fake([]() -> std::string {
              const DeviceMemory some(0, 256 << 20);
              return error_of([] { DeviceMemory(0, 1000 << 20); });
            }),
            coded(ErrorCode::out_of_memory,
                  "cannot allocate 1048576000 bytes (1000.0 MiB) on CUDA device 0: 768.0 MiB of 1.0 GiB are free"));
}

TEST(CudaMemory, IsCopiedInEveryDirectionAndWaitedFor) {
  EXPECT_EQ(with_fake([]() -> std::string {
              const std::string_view text = "warp and weft";
              const DeviceMemory there(1, text.size());
              const DeviceMemory beside(1, text.size());
              std::string back(text.size(), ' ');
              copy_and_wait(1, there.data(), text.data(), text.size());
              copy_and_wait(1, beside.data(), there.data(), text.size());
              copy_and_wait(1, back.data(), beside.data(), text.size());
              copy_and_wait(1, nullptr, nullptr, 0);
              return fmt::format("{}, {} copies, {} waits", back, fake().copies.load(), fake().synchronizes.load());
            }),
            "warp and weft, 3 copies, 3 waits");
}

TEST(CudaMemory, ACopyThatTheDriverRefusesIsAnError) {
  EXPECT_EQ(with_fake([] {
              const DeviceMemory small(0, 8);
              char bytes[16] = {};
              return error_of([&] { copy_and_wait(0, small.data(), bytes, 16); });
            }),
            coded(ErrorCode::device, "copying to or from device memory: CUDA_ERROR_FAKE (as the fake says)"));
}

/// Ends the process badly unless the driver was called after its end, in vain.
struct Witness {
  const FakeDriver* fake = nullptr;
  ~Witness() {
    if (fake == nullptr || fake->after_the_end == 0 || fake->frees != 0) std::_Exit(3);
  }
};

TEST(CudaMemory, MayOutliveTheDriver) {
  EXPECT_EQ(with_fake([]() -> std::string {
              // Static objects are destroyed in reverse order: the driver, which starts inside of the assignment, then
              // the memory, then the witness.
              static Witness witness;
              static DeviceMemory last;
              last = DeviceMemory(0, 100);
              witness.fake = &fake();
              return fmt::format("{}", last.bytes());
            }),
            "100");
}

TEST(CudaMemory, EveryThreadMayUseIt) {
  EXPECT_EQ(with_fake([] {
              std::vector<std::thread> threads;
              for (int i = 0; i < 8; ++i) {
                threads.emplace_back([i] {
                  for (int round = 0; round < 100; ++round) {
                    const DeviceMemory memory(i % 2, 64);
                    copy_and_wait(i % 2, memory.data(), &i, sizeof i);
                  }
                });
              }
              for (std::thread& thread : threads) thread.join();
              return fmt::format("{} {} {} {}", fake().allocations.load(), fake().frees.load(),
                                 fake().pushes - fake().pops, fake().retains.load());
            }),
            "800 800 0 2");
}

TEST(CudaModules, GiveKernelsAndAreUnloadedOnce) {
  EXPECT_EQ(with_fake([]() -> std::string {
              {
                const Module module(1, std::string_view("good cubin"));
                if (module.function("kernel", 200000) == nullptr) return "no function";
                if (fake().last_shared_bytes != 200000) return "the shared memory was not allowed";
              }
              return fmt::format("{} {} {}", fake().modules.load(), fake().unloads.load(), fake().pushes - fake().pops);
            }),
            "1 1 0");
}

TEST(CudaModules, SayWhichKernelWentWrong) {
  EXPECT_EQ(with_fake([] { return error_of([] { Module(0, std::string_view("bad cubin")); }); }),
            coded(ErrorCode::device, "loading a compiled kernel: CUDA_ERROR_FAKE (as the fake says)"));
  const auto function = [](const char* name, int shared_bytes) {
    return with_fake([&] {
      const Module module(0, std::string_view("good cubin"));
      return error_of([&] { module.function(name, shared_bytes); });
    });
  };
  EXPECT_EQ(function("other", 0),
            coded(ErrorCode::device, "looking for the kernel 'other': CUDA_ERROR_FAKE (as the fake says)"));
  EXPECT_EQ(function("kernel", 300000), coded(ErrorCode::device,
                                              "allowing the kernel 'kernel' 300000 bytes of shared memory: "
                                              "CUDA_ERROR_FAKE (as the fake says)"));
}

TEST(CudaTensorMaps, AreRefusedAsOnAGpu) {
  EXPECT_EQ(with_fake([] { return tensor_map_surprises(); }), "");
}

TEST(CudaModules, SayWhichVersionsDoNotFit) {
  const auto refusal = [](const char* driver_version, int compiler_version) {
    return with_fake([&] {
      setenv("FAKE_CUDA_VERSION", driver_version, 1);
      return error_of([&] { Module(0, std::string_view("bad cubin"), compiler_version); });
    });
  };
  const char* const fits = "loading a kernel of NVRTC {} into a driver of CUDA {}: CUDA_ERROR_FAKE (as the fake says)";
  EXPECT_EQ(refusal("13000", 13000), coded(ErrorCode::device, fmt::format(fmt::runtime(fits), "13.0", "13.0")));
  EXPECT_EQ(refusal("13000", 12030), coded(ErrorCode::device, fmt::format(fmt::runtime(fits), "12.3", "13.0")));
  EXPECT_EQ(refusal("12000", 12090), coded(ErrorCode::device, fmt::format(fmt::runtime(fits), "12.9", "12.0")));
  EXPECT_EQ(refusal("12040", 13010),
            coded(ErrorCode::device,
                  "loading a kernel of NVRTC 13.1 into a driver of CUDA 12.4, which needs an NVRTC of CUDA 12 at most "
                  "(HEDDLE_NVRTC may name it; the wheel nvidia-cuda-nvrtc-cu12 holds one): CUDA_ERROR_FAKE (as the "
                  "fake says)"));
  EXPECT_EQ(refusal("13000", 14000),
            coded(ErrorCode::device,
                  "loading a kernel of NVRTC 14.0 into a driver of CUDA 13.0, which needs an NVRTC of CUDA 13 at most "
                  "(HEDDLE_NVRTC may name it; the wheel nvidia-cuda-nvrtc==13.* holds one): CUDA_ERROR_FAKE (as the "
                  "fake says)"));
}

TEST(CudaPlaces, TellTheDeviceOfAPointer) {
  EXPECT_EQ(with_fake([] {
              const DeviceMemory memory(1, 100);
              const char* bytes = static_cast<const char*>(memory.data());
              const int host = 0;
              return fmt::format("{} {} {} {} {}", location_of(bytes).device, location_of(bytes + 99).device,
                                 location_of(bytes + 100).device, location_of(&host).device,
                                 location_of(nullptr).device);
            }),
            "1 1 -1 -1 -1");
}

TEST(CudaPlaces, WithoutADriverAllMemoryIsTheHosts) {
  EXPECT_EQ(in_child([] {
              setenv("HEDDLE_CUDA_DRIVER", "/no/such/file", 1);
              const int host = 0;
              return fmt::format("{}", location_of(&host).device);
            }),
            "-1");
}

}  // namespace
}  // namespace heddle::cuda
