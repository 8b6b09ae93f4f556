// AMD's devices, their memory and modules, owned.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "backend/amd/driver/hip.h"
#include "device/caps.h"

namespace heddle::amd {

/// All devices that HIP lists; empty where hip_missing() says why. Read once.
const std::vector<device::AmdCaps>& devices();
/// Empty when HIP works and there is at least one device; else the reason, a sentence. Never throws.
std::string hip_missing();

/// Makes a device current on this thread for a scope. Throws Error(invalid_argument) for an index that is not there.
class DeviceScope {
 public:
  explicit DeviceScope(int device);
  ~DeviceScope();
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  int before_ = -1;  // -1: nothing is to be restored
};

/// Memory on one device, freed with this object. Throws Error(out_of_memory) with the bytes asked for and free.
class DeviceMemory {
 public:
  DeviceMemory(int device, std::size_t bytes);  // not 0; 256-byte aligned
  ~DeviceMemory();
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  void* data() const { return data_; }

 private:
  int device_;
  void* data_ = nullptr;
};

/// Copies in either direction or on the device, and waits for it. Not for use inside run().
void copy_and_wait(int device, void* to, const void* from, std::size_t bytes);
/// Waits for what was enqueued on the default stream. `what`: for errors.
void wait(int device, const char* what);
/// A graph records what is enqueued on the stream now.
bool is_capturing(int device, void* stream);
/// Which device's memory a pointer is in; -1: host memory, or memory that HIP does not know. Leaves HIP's last error as
/// it was.
int device_of(const void* pointer);

/// A loaded code object. Its kernels live as long as it does.
class Module {
 public:
  Module(int device, std::span<const char> code);
  ~Module();
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

  HipFunction function(const char* name) const;

 private:
  int device_;
  HipModule module_ = nullptr;
};

/// Shape of a launch: workgroups x height of them, and the threads of each.
struct Launch {
  unsigned workgroups, height = 1;
  unsigned threads;
};
/// Enqueues a kernel of `device` on a stream (null: the default one). `what`: of it, for errors: "launching
/// merge_states".
void launch_kernel(int device, HipFunction function, const Launch& launch, void* stream, void** parameters,
                   const char* what);

}  // namespace heddle::amd
