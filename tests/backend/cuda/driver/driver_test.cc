// Loading the driver: what is said of one that is not there, too old, incomplete, or does not start. Each in a process
// of its own, against the fake of fake_driver.h.
#include "backend/cuda/driver/driver.h"

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <thread>
#include <vector>

#include "backend/cuda/driver/cuda_objects.h"
#include "fake_driver.h"
#include "heddle/error.h"
#include "in_child.h"

namespace heddle::cuda {
namespace {

using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;
using testing::StartsWith;

/// driver_missing() with that driver, which driver() must throw with the same words and with code unsupported.
std::string missing(const char* file, const char* variable = nullptr, const char* value = nullptr) {
  return in_child([&]() -> std::string {
    setenv("HEDDLE_CUDA_DRIVER", file, 1);
    if (variable != nullptr) setenv(variable, value, 1);
    const std::string sentence = driver_missing();
    if (!devices().empty()) return "there are devices nevertheless";
    try {
      driver();
    } catch (const Error& error) {
      if (error.code() != ErrorCode::unsupported || error.what() != sentence) return std::string("not ") + error.what();
      return "refused: " + sentence;
    }
    return "loaded: " + sentence;
  });
}

TEST(Driver, AFileThatIsNotThere) {
  EXPECT_THAT(missing("/no/such/libcuda.so.1"),
              AllOf(StartsWith("refused: the CUDA driver cannot be used: HEDDLE_CUDA_DRIVER is "
                               "'/no/such/libcuda.so.1'; "),
                    HasSubstr("No such file")));
}

TEST(Driver, NoneAnywhereListsWhereItWasLookedFor) {
  const std::string sentence = in_child([] {
    unsetenv("HEDDLE_CUDA_DRIVER");
    return driver_missing();
  });
  if (sentence.find("was not found") == std::string::npos) GTEST_SKIP() << "this machine has a CUDA driver";
  EXPECT_EQ(sentence,
            "the CUDA driver was not found: no usable libcuda.so.1 in the loader's path, /usr/local/nvidia/lib64, "
            "/usr/lib/wsl/lib; HEDDLE_CUDA_DRIVER may name its file or folder");
}

TEST(Driver, ALibraryThatIsNoDriver) {
  EXPECT_THAT(missing(NO_DRIVER), EndsWith(NO_DRIVER " is no CUDA driver: it does not tell its version"));
}

TEST(Driver, OneThatIsTooOld) {
  EXPECT_THAT(missing(FAKE_DRIVER, "FAKE_CUDA_VERSION", "11080"),
              EndsWith(FAKE_DRIVER " is a driver of CUDA 11.8; 12.0 is the oldest accepted"));
  // Its age comes before what it lacks.
  EXPECT_THAT(missing(LACKING_DRIVER, "FAKE_CUDA_VERSION", "11080"), HasSubstr("12.0 is the oldest accepted"));
}

TEST(Driver, TheOldestAccepted) {
  EXPECT_EQ(in_child([] {
              setenv("HEDDLE_CUDA_DRIVER", FAKE_DRIVER, 1);
              setenv("FAKE_CUDA_VERSION", "12000", 1);
              return driver_missing();
            }),
            "");
}

TEST(Driver, OneThatLacksAFunction) {
  EXPECT_THAT(missing(LACKING_DRIVER),
              EndsWith(LACKING_DRIVER " is a driver of CUDA 13.0 that lacks the function cuEventElapsedTime"));
}

TEST(Driver, OneThatDoesNotStart) {
  EXPECT_EQ(missing(FAKE_DRIVER, "FAKE_CUDA_INIT", "100"),
            "refused: the CUDA driver " FAKE_DRIVER
            " does not start: CUDA_ERROR_NO_DEVICE (no CUDA-capable device is detected)");
  // A result that the driver has no words for.
  EXPECT_THAT(missing(FAKE_DRIVER, "FAKE_CUDA_INIT", "999"), EndsWith(" does not start: CUDA error 999"));
}

TEST(Driver, OneThatListsNoDevice) {
  EXPECT_EQ(missing(FAKE_DRIVER, "FAKE_CUDA_DEVICES", "0"), "loaded: the CUDA driver lists no device");
}

TEST(Driver, IsStartedOnceForAllThreads) {
  EXPECT_EQ(in_child([]() -> std::string {
              setenv("HEDDLE_CUDA_DRIVER", FAKE_DRIVER, 1);
              std::vector<std::thread> threads;
              for (int i = 0; i < 8; ++i) threads.emplace_back([] { driver(); });
              for (std::thread& thread : threads) thread.join();
              return std::to_string(fake_driver(FAKE_DRIVER)->inits);
            }),
            "1");
}

TEST(Driver, ItsVersionIsKnownOnceItHasStarted) {
  const auto versions = [](const char* init) {
    return in_child([&]() -> std::string {
      setenv("HEDDLE_CUDA_DRIVER", FAKE_DRIVER, 1);
      setenv("FAKE_CUDA_VERSION", "12040", 1);
      setenv("FAKE_CUDA_INIT", init, 1);
      const int before = started_version();
      driver_missing();
      return version_text(before) + ", then " + version_text(started_version());
    });
  };
  EXPECT_EQ(versions("0"), "0.0, then 12.4");
  EXPECT_EQ(versions("100"), "0.0, then 0.0");
}

TEST(Driver, CheckGivesTheDriversWordsAndACode) {
  EXPECT_EQ(in_child([]() -> std::string {
              setenv("HEDDLE_CUDA_DRIVER", FAKE_DRIVER, 1);
              check(CUDA_SUCCESS, "nothing");
              std::string report;
              for (const CUresult result : {CUDA_ERROR_NO_DEVICE, CUDA_ERROR_OUT_OF_MEMORY}) {
                try {
                  check(result, "weaving");
                } catch (const Error& error) {
                  report += error.code() == ErrorCode::out_of_memory ? "[memory] " : "[device] ";
                  report += std::string(error.what()) + "; ";
                }
              }
              return report;
            }),
            "[device] weaving: CUDA_ERROR_NO_DEVICE (no CUDA-capable device is detected); "
            "[memory] weaving: CUDA_ERROR_FAKE (as the fake says); ");
}

/// Where toolkits keep a libcuda.so to link against: it has every function, and none that works.
constexpr const char* kStub = "/usr/local/cuda/lib64/stubs/libcuda.so";

TEST(Driver, EveryFunctionIsExportedByTheToolkitsStub) {
  if (!std::filesystem::exists(kStub)) GTEST_SKIP() << "there is no " << kStub;
  void* stub = dlopen(kStub, RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(stub, nullptr) << dlerror();
#define HEDDLE_DRIVER_FUNCTION(member, symbol, parameters) EXPECT_NE(dlsym(stub, #symbol), nullptr) << "no " #symbol;
#include "backend/cuda/driver/driver_functions.def"
#undef HEDDLE_DRIVER_FUNCTION
}

}  // namespace
}  // namespace heddle::cuda
