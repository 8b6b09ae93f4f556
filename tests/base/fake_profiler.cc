// A profiler's library as NVTX 3 injects it, for profiler_range_test.cc: it keeps the names of ranges that are open and
// of those that were.
#include <cstddef>
#include <cstdint>
#include <string>

namespace {

std::string seen;

int push(const char* name) {
  seen += "(" + std::string(name);
  return 0;
}
int pop() {
  seen += ")";
  return 0;
}

using Function = void (*)();
struct Callbacks {
  std::size_t struct_size;
  int (*module_functions)(int module, Function*** table, unsigned* size);
};

}  // namespace

extern "C" __attribute__((visibility("default"))) int InitializeInjectionNvtx2(
    const void* (*tables)(std::uint32_t id)) {
  const auto* callbacks = static_cast<const Callbacks*>(tables(1));
  Function** functions = nullptr;
  unsigned size = 0;
  constexpr int kCore = 1, kOther = 2;
  constexpr unsigned kPush = 9, kPop = 11, kLast = 15;
  if (tables(77) != nullptr || tables(3) == nullptr || callbacks->struct_size < sizeof(Callbacks)) return 0;
  if (callbacks->module_functions(kOther, &functions, &size) != 0) return 0;
  if (callbacks->module_functions(kCore, &functions, &size) == 0 || size <= kLast) return 0;
  for (unsigned i = 1; i <= kLast; ++i) {
    if (functions[i] == nullptr || *functions[i] != nullptr) return 0;
  }
  *functions[kPush] = reinterpret_cast<Function>(push);
  *functions[kPop] = reinterpret_cast<Function>(pop);
  return 1;
}

extern "C" __attribute__((visibility("default"))) const char* fake_profiler_seen() { return seen.c_str(); }
