#include "backend/cuda/driver/driver.h"

#include <fmt/format.h>

#include <array>
#include <atomic>

#include "backend/libraries/loaded_library.h"
#include "heddle/error.h"

namespace heddle::cuda {
namespace {

constexpr int kOldestVersion = 12000;

std::atomic<int> started{0};

/// Why a library is no driver that serves; empty when it is one. The version comes first: an old driver lacks
/// functions, but its age is the news.
std::string complaint(const libraries::Library& library) {
  CUresult (*get_version)(int*) = nullptr;
  int version = 0;
  if (!library.find(get_version, "cuDriverGetVersion") || get_version(&version) != CUDA_SUCCESS) {
    return "is no CUDA driver: it does not tell its version";
  }
  if (version < kOldestVersion) {
    return fmt::format("is a driver of CUDA {}; {} is the oldest accepted", version_text(version),
                       version_text(kOldestVersion));
  }
  constexpr std::array kSymbols{
#define HEDDLE_DRIVER_FUNCTION(member, symbol, parameters) #symbol,
#include "backend/cuda/driver/driver_functions.def"
#undef HEDDLE_DRIVER_FUNCTION
  };
  const char* const lacks = libraries::lacking(library, kSymbols);
  if (lacks == nullptr) return {};
  return fmt::format("is a driver of CUDA {} that lacks the function {}", version_text(version), lacks);
}

/// The driver's words for a result: "CUDA_ERROR_NO_DEVICE (no CUDA-capable device is detected)".
std::string words(const Driver& driver, CUresult result) {
  const char* name = nullptr;
  const char* text = nullptr;
  const bool known = driver.GetErrorName(result, &name) == CUDA_SUCCESS && name != nullptr &&
                     driver.GetErrorString(result, &text) == CUDA_SUCCESS && text != nullptr;
  return known ? fmt::format("{} ({})", name, text) : fmt::format("CUDA error {}", result);
}

using Loaded = libraries::LoadedLibrary<Driver>;

void start(Loaded& loaded) {
  Driver& driver = loaded.functions;
#define HEDDLE_DRIVER_FUNCTION(member, symbol, parameters) loaded.library.find(driver.member, #symbol);
#include "backend/cuda/driver/driver_functions.def"
#undef HEDDLE_DRIVER_FUNCTION
  if (const CUresult result = driver.Init(0); result != CUDA_SUCCESS) {
    loaded.missing = fmt::format("the CUDA driver {} does not start: {}", loaded.library.path(), words(driver, result));
    return;
  }
  int version = 0;
  driver.DriverGetVersion(&version);
  started = version;
}

/// Loaded at the first call. Never destroyed: objects of static life free device memory while the process ends.
const Loaded& loaded() {
  // Where containers and WSL mount the driver, in case the loader was not told.
  const auto load = [] {
    return libraries::load_library<Driver>({.what = "the CUDA driver",
                                            .option = base::Option::cuda_driver,
                                            .names = {"libcuda.so.1"},
                                            .folders = {"/usr/local/nvidia/lib64", "/usr/lib/wsl/lib"}},
                                           complaint, start);
  };
  static const Loaded& once = *new Loaded(load());
  return once;
}

}  // namespace

const Driver& driver() { return loaded().here().functions; }

int started_version() { return started; }

std::string version_text(int version) { return fmt::format("{}.{}", version / 1000, version % 1000 / 10); }

void check(CUresult result, const char* doing) {
  if (result == CUDA_SUCCESS) return;
  const ErrorCode code = result == CUDA_ERROR_OUT_OF_MEMORY ? ErrorCode::out_of_memory : ErrorCode::device;
  throw Error(code, fmt::format("{}: {}", doing, words(driver(), result)));
}

}  // namespace heddle::cuda
