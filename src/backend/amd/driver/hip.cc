#include "backend/amd/driver/hip.h"

#include <fmt/format.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <string_view>

#include "backend/libraries/loaded_library.h"
#include "heddle/error.h"

namespace heddle::amd {
namespace {

constexpr int kOldestMajor = 5;
constexpr int kMajor = 10'000'000, kMinor = 100'000;  // of a version

std::atomic<int> started{0};

/// Why a library is no HIP that serves; empty when it is one. The version comes first: an old one lacks functions, but
/// its age is the news.
std::string complaint(const libraries::Library& library) {
  HipError (*get_version)(int*) = nullptr;
  int version = 0;
  if (!library.find(get_version, "hipRuntimeGetVersion") || get_version(&version) != kHipSuccess) {
    return "is no HIP: it does not tell its version";
  }
  if (version / kMajor < kOldestMajor) {
    return fmt::format("is HIP {}; {}.0 is the oldest accepted", version_text(version), kOldestMajor);
  }
  constexpr std::array kSymbols{
#define HEDDLE_HIP_FUNCTION(result, member, parameters) "hip" #member,
#include "backend/amd/driver/hip_functions.def"
#undef HEDDLE_HIP_FUNCTION
  };
  const char* const lacks = libraries::lacking(library, kSymbols);
  if (lacks == nullptr) return {};
  return fmt::format("is HIP {} that lacks the function {}", version_text(version), lacks);
}

/// HIP's words for a result: "hipErrorNoDevice (no ROCm-capable device is detected)".
std::string words(const Hip& hip, HipError result) {
  const char* const name = hip.GetErrorName(result);
  const char* const text = hip.GetErrorString(result);
  return name != nullptr && text != nullptr ? fmt::format("{} ({})", name, text) : fmt::format("HIP error {}", result);
}

using Loaded = libraries::LoadedLibrary<Hip>;

void start(Loaded& loaded) {
  Hip& hip = loaded.functions;
#define HEDDLE_HIP_FUNCTION(result, member, parameters) loaded.library.find(hip.member, "hip" #member);
#include "backend/amd/driver/hip_functions.def"
#undef HEDDLE_HIP_FUNCTION
  if (const HipError result = hip.Init(0); result != kHipSuccess) {
    loaded.missing = fmt::format("HIP ({}) does not start: {}", loaded.library.path(), words(hip, result));
    return;
  }
  int version = 0;
  hip.RuntimeGetVersion(&version);
  started = version;
}

/// Loaded at the first call. Never destroyed: objects of static life free device memory while the process ends.
const Loaded& loaded() {
  const auto load = [] {
    return libraries::load_library<Hip>({.what = "HIP",
                                         .option = base::Option::hip,
                                         .names = {"libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5"},
                                         .folders = rocm_folders(),
                                         .second_names = {"libamdhip64.so"},
                                         .old_names = {"libamdhip64.so.4"}},
                                        complaint, start);
  };
  static const Loaded& once = *new Loaded(load());
  return once.here();
}

}  // namespace

const Hip& hip() { return loaded().functions; }

const libraries::Library& hip_library() { return loaded().library; }

int started_version() { return started; }

std::string version_text(int version) { return fmt::format("{}.{}", version / kMajor, version % kMajor / kMinor); }

std::vector<std::filesystem::path> rocm_folders() {
  std::vector<std::filesystem::path> folders;
  if (const char* const root = std::getenv("ROCM_PATH"); root != nullptr && *root != '\0') {
    folders.push_back(std::filesystem::path(root) / "lib");
  }
  folders.emplace_back("/opt/rocm/lib");
  constexpr std::array<std::string_view, 2> kWheels{"_rocm_sdk_core/lib", "torch/lib"};
  for (std::filesystem::path& folder : libraries::folders_of_packages(kWheels)) folders.push_back(std::move(folder));
  return folders;
}

void check(HipError result, const char* doing) {
  if (result == kHipSuccess) return;
  const ErrorCode code = result == kHipOutOfMemory ? ErrorCode::out_of_memory : ErrorCode::device;
  throw Error(code, fmt::format("{}: {}", doing, words(hip(), result)));
}

}  // namespace heddle::amd
