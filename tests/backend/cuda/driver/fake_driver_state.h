// Shared by the fake driver's two files: fake_devices.cc has devices, memory and streams, fake_launch.cc kernels.
#pragma once

#include <mutex>

#include "fake_driver.h"

namespace heddle::cuda {

extern FakeDriver state;
extern std::mutex mutex;

int device_count();
/// The device of this thread's context; -1 without one.
int current_device();

// Handles are small numbers at addresses that are never read.
template <class Handle>
Handle handle_of(int number) {
  return reinterpret_cast<Handle>(std::uintptr_t{0x1000} * static_cast<std::uintptr_t>(number + 1));
}
template <class Handle>
int number_of(Handle handle) {
  return static_cast<int>(reinterpret_cast<std::uintptr_t>(handle) / 0x1000) - 1;
}

/// Streams are numbered so that each tells its device; null is the current one's.
inline int device_of(CUstream stream) {
  return stream == nullptr ? current_device() : number_of(stream) % device_count();
}

/// Keeps a step of a stream.
void keep_step(FakeStep::Kind kind, CUstream stream, CUevent event, const char* name = "");

/// The answer of every call but the first few when the driver is not up; CUDA_SUCCESS when it is.
CUresult down();
/// down() for calls that need a context.
CUresult down_here();

#define NEEDS_DRIVER \
  if (const CUresult result = down(); result != CUDA_SUCCESS) return result
#define NEEDS_CONTEXT \
  if (const CUresult result = down_here(); result != CUDA_SUCCESS) return result

// A function of the fake with other parameters than the table's does not compile.
extern "C" {
#define HEDDLE_DRIVER_FUNCTION(member, symbol, parameters) CUresult symbol parameters;
#include "backend/cuda/driver/driver_functions.def"
#undef HEDDLE_DRIVER_FUNCTION
}

}  // namespace heddle::cuda
