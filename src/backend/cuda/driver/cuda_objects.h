// Devices, contexts, memory and modules of the driver, owned.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "backend/cuda/driver/driver.h"
#include "device/caps.h"

namespace heddle::cuda {

/// All devices; empty where driver_missing() says why. Read once.
const std::vector<device::CudaCaps>& devices();

/// The architecture that NVRTC compiles for so that the device runs it: "sm_90a".
std::string architecture_of(int device);

/// The device's primary context (the one that the CUDA runtime and PyTorch use), retained once for the process. Throws
/// Error(invalid_argument) for an index that is not there.
CUcontext primary_context(int device);

/// Makes a context current on this thread for a scope; costs nothing but a query where it already is.
class ContextScope {
 public:
  explicit ContextScope(int device);
  ~ContextScope();
  ContextScope(const ContextScope&) = delete;
  ContextScope& operator=(const ContextScope&) = delete;

 private:
  bool pushed_ = false;
};

/// Memory on one device, freed with this object. Throws Error(out_of_memory) with the bytes asked for and free.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  DeviceMemory(int device, std::size_t bytes);  // 256-byte aligned; 0 bytes: null
  ~DeviceMemory();
  DeviceMemory(DeviceMemory&& other) noexcept;
  DeviceMemory& operator=(DeviceMemory&& other) noexcept;

  void* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }

 private:
  void release() noexcept;
  int device_ = 0;
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

/// Copies in either direction or on the device (unified addresses), and waits for it. Not for use inside run().
void copy_and_wait(int device, void* to, const void* from, std::size_t bytes);

/// A loaded cubin. Its kernels live as long as it does.
class Module {
 public:
  /// `compiler_version`: that of the NVRTC that made the kernel, 13000; 0: not known. If the driver refuses the kernel,
  /// the error says which NVRTC would fit.
  Module(int device, std::span<const char> cubin, int compiler_version = 0);
  ~Module();
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

  /// With so much dynamic shared memory allowed.
  CUfunction function(const char* name, int shared_bytes) const;

 private:
  int device_;
  CUmodule module_ = nullptr;
};

/// Shape of a launch: ctas x height CTAs, the threads of each, and the bytes of its dynamic shared memory.
struct Launch {
  unsigned ctas, height = 1;
  unsigned threads;
  unsigned shared_bytes = 0;
  bool overlaps = false;  // compute capability 9.0: it begins while the kernel before it ends, and waits for it itself
};
/// Enqueues a kernel on a stream (null: the legacy one) of the current context. `what`: of it, for errors: "launching
/// merge_states".
void launch_kernel(CUfunction function, const Launch& launch, void* stream, void** parameters, const char* what);

/// Where a pointer's memory is. `device` -1: host memory, or memory that the driver does not know.
struct PointerLocation {
  int device = -1;
};
PointerLocation location_of(const void* pointer);

}  // namespace heddle::cuda
