// What a test sees of the fake CUDA driver: a libcuda.so.1 with host memory for device memory, which counts what it is
// asked for and refuses what the real one refuses. HEDDLE_CUDA_DRIVER points the library to it.
//
// Settings, read from the environment when it is loaded (all optional):
//   FAKE_CUDA_VERSION  what cuDriverGetVersion says (13000)
//   FAKE_CUDA_INIT     what cuInit returns (0)
//   FAKE_CUDA_DEVICES  how many devices there are (2)
//   FAKE_CUDA_BYTES    the memory of each (1 GiB)
#pragma once

#include <dlfcn.h>

#include <atomic>

namespace heddle::cuda {

struct FakeDriver {
  std::atomic<int> inits, retains, pushes, pops;
  std::atomic<int> allocations, frees;    // that went well
  std::atomic<int> wrong_frees;           // of memory that is not there, or in another device's context
  std::atomic<int> modules, unloads;      // loaded, and unloaded
  std::atomic<int> copies, synchronizes;  // and waits for a stream, an event or a context
  std::atomic<int> launches;              // of any kernel; none of them does anything
  std::atomic<int> last_shared_bytes;     // what max_dynamic_shared_size_bytes was set to
  std::atomic<int> after_the_end;         // calls that came after the driver had gone
};

/// The fake that this process has loaded; null when it has not.
inline const FakeDriver* fake_driver(const char* path) {
  void* handle = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
  if (handle == nullptr) return nullptr;
  auto get = reinterpret_cast<const FakeDriver* (*)()>(dlsym(handle, "fake_cuda_driver"));
  return get == nullptr ? nullptr : get();
}

}  // namespace heddle::cuda
