// The fake HIP library as the tests of the backend ask it: what went wrong in its launches, and what it records.
#pragma once

#include <dlfcn.h>

#include <cstddef>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <vector>

namespace heddle::amd {

/// A function of the library that HEDDLE_HIP names, which the backend has opened too.
template <class Function>
Function* fake_hip(const char* name) {
  void* const library = dlopen(std::getenv("HEDDLE_HIP"), RTLD_NOW | RTLD_LOCAL);
  void* const symbol = library == nullptr ? nullptr : dlsym(library, name);
  if (symbol == nullptr) throw std::runtime_error(dlerror());
  return reinterpret_cast<Function*>(symbol);
}

/// Faults that the simulator found in all launches since the last call; empty: none.
inline std::string take_findings() {
  std::vector<char> text(20000);
  fake_hip<std::size_t(char*, std::size_t)>("fake_hip_take_findings")(text.data(), text.size());
  return text.data();
}

inline std::size_t launches() { return fake_hip<std::size_t()>("fake_hip_launches")(); }

}  // namespace heddle::amd
