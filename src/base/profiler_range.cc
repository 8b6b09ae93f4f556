#include "base/profiler_range.h"

#include <dlfcn.h>

#include <array>
#include <cstddef>
#include <cstdlib>
#include <mutex>

namespace heddle::base {
namespace {

// The interface of NVTX 3, as its nvtxTypes.h has it: the profiler's library is given a function that tells it
// tables; in the table of the core functions it writes where its own functions are.
using Function = void (*)();
constexpr std::uint32_t kCallbacks = 1, kVersionInfo = 3;  // tables
constexpr int kCore = 1;                                   // of the callbacks: the module
constexpr std::size_t kPush = 9, kPop = 11, kCoreSize = 16;
constexpr std::uint32_t kVersion = 3;

std::array<Function, kCoreSize> functions{};
std::array<Function*, kCoreSize + 1> table{};  // [0] is no function; the last one is null

int module_functions(int module, Function*** out_table, unsigned* out_size) {
  if (module != kCore) return 0;
  for (std::size_t i = 1; i < kCoreSize; ++i) table[i] = &functions[i];
  if (out_size != nullptr) *out_size = kCoreSize;
  if (out_table != nullptr) *out_table = table.data();
  return 1;
}

struct Callbacks {
  std::size_t struct_size;
  int (*module_functions)(int module, Function*** out_table, unsigned* out_size);
};
struct VersionInfo {
  std::size_t struct_size;
  std::uint32_t version, reserved;
  void (*set_injection_version)(std::uint32_t version);
};

const void* export_table(std::uint32_t id) {
  static const Callbacks callbacks = {sizeof(Callbacks), module_functions};
  static const VersionInfo version = {sizeof(VersionInfo), kVersion, 0, [](std::uint32_t) {}};
  if (id == kCallbacks) return &callbacks;
  return id == kVersionInfo ? &version : nullptr;
}

using Initialize = int (*)(const void* (*tables)(std::uint32_t id));

bool opened_profiler() {
  const char* path = std::getenv("NVTX_INJECTION64_PATH");
  if (path == nullptr || *path == '\0') return false;
  void* library = ::dlopen(path, RTLD_LAZY);  // stays open: its functions are called until the process ends
  if (library == nullptr) return false;
  const auto initialize = reinterpret_cast<Initialize>(::dlsym(library, "InitializeInjectionNvtx2"));
  return initialize != nullptr && initialize(export_table) != 0 && functions[kPush] != nullptr &&
         functions[kPop] != nullptr;
}

}  // namespace

std::atomic<Profiler> profiler{Profiler::unknown};

bool find_profiler() noexcept {
  static std::once_flag once;
  std::call_once(once, [] { profiler = opened_profiler() ? Profiler::listens : Profiler::none; });
  return profiler == Profiler::listens;
}

void push_range(const char* name) noexcept { reinterpret_cast<int (*)(const char*)>(functions[kPush])(name); }
void pop_range() noexcept { reinterpret_cast<int (*)()>(functions[kPop])(); }

}  // namespace heddle::base
