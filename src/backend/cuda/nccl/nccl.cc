#include "backend/cuda/nccl/nccl.h"

#include <fmt/format.h>

#include <array>
#include <string_view>

#include "backend/libraries/loaded_library.h"
#include "heddle/nccl_communicator.h"

namespace heddle::cuda {
namespace {

constexpr int kOldestVersion = 21400;

/// Why a library is no NCCL that serves; empty when it is one.
std::string complaint(const libraries::Library& library) {
  ncclResult_t (*get_version)(int*) = nullptr;
  int version = 0;
  if (!library.find(get_version, "ncclGetVersion") || get_version(&version) != ncclSuccess) {
    return "is no NCCL: it does not tell its version";
  }
  if (version < kOldestVersion) {
    return fmt::format("is NCCL {}; {} is the oldest accepted", nccl_version_text(version),
                       nccl_version_text(kOldestVersion));
  }
  constexpr std::array kSymbols{
#define HEDDLE_NCCL_FUNCTION(member, parameters) "nccl" #member,
#include "backend/cuda/nccl/nccl_functions.def"
#undef HEDDLE_NCCL_FUNCTION
      "ncclGetErrorString"};
  const char* const lacks = libraries::lacking(library, kSymbols);
  if (lacks == nullptr) return {};
  return fmt::format("is NCCL {}, and lacks the function {}", nccl_version_text(version), lacks);
}

using Loaded = libraries::LoadedLibrary<Nccl>;

Loaded load() {
  constexpr std::array<std::string_view, 1> kWheels{"nccl"};
  libraries::LibrarySearch search{
      .what = "NCCL", .option = base::Option::nccl, .names = {"libnccl.so.2"}, .folders = libraries::toolkit_folders()};
  for (std::filesystem::path& folder : libraries::wheel_folders(kWheels)) search.folders.push_back(std::move(folder));
  return libraries::load_library<Nccl>(search, complaint, [](Loaded& loaded) {
#define HEDDLE_NCCL_FUNCTION(member, parameters) loaded.library.find(loaded.functions.member, "nccl" #member);
#include "backend/cuda/nccl/nccl_functions.def"
#undef HEDDLE_NCCL_FUNCTION
    loaded.library.find(loaded.functions.GetErrorString, "ncclGetErrorString");
  });
}

const Loaded& loaded() {
  static const Loaded& once = *new Loaded(load());
  return once;
}

}  // namespace

const Nccl& nccl() { return loaded().here().functions; }

std::string nccl_version_text(int version) {
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

std::string nccl_words(ncclResult_t result) {
  return fmt::format("NCCL error {} ({})", result, nccl().GetErrorString(result));
}

}  // namespace heddle::cuda

namespace heddle {

std::string nccl_missing() { return cuda::loaded().missing; }

}  // namespace heddle
