// State that the fake library's files share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "backend/amd/simulator/simulator.h"

namespace heddle::amd::fake {

/// hipError_t. The numbers have not changed from HIP 5 to 7.
enum HipError : int {
  kSuccess = 0,
  kInvalidValue = 1,
  kOutOfMemory = 2,
  kNotInitialized = 3,
  kInvalidDevice = 101,
  kNoDevice = 100,
  kInvalidImage = 200,
  kNoBinaryForGpu = 209,
  kInvalidHandle = 400,
  kNotFound = 500,
  kNotReady = 600,
  kIllegalAddress = 700,
  kLaunchFailure = 719,
  kNotSupported = 801,
};

struct Device {
  int number = 0;
  std::size_t allocated = 0;
  HipError broken = kSuccess;  ///< after an access out of bounds
};

struct Module {
  Module(simulator::CodeObject code, simulator::Memory& memory, int on)
      : object(std::move(code)), simulator(object, memory), device(on) {}
  simulator::CodeObject object;
  simulator::Simulator simulator;
  int device;
  std::map<std::string, std::unique_ptr<struct Function>> functions;
};

struct Function {
  Module* module = nullptr;
  const simulator::KernelInfo* kernel = nullptr;
};

struct Allocation {
  std::size_t bytes = 0;
  int device = 0;
};

struct State {
  std::mutex mutex;
  std::map<int, Device> devices;
  simulator::Memory memory;  ///< of all devices: their addresses are distinct
  std::map<std::uint64_t, Allocation> allocations;
  std::map<void*, std::unique_ptr<Module>> modules;
  std::string findings;
  std::size_t launches = 0;
  std::uint64_t wave_order = 0;
  int last_error = kSuccess;
  void* captured = nullptr;  ///< launches on this stream are recorded, and not run
  std::vector<std::function<void()>> recorded;
};
/// Lives until the process ends.
State& state();

std::string setting(const char* name, const char* otherwise);
int device_count();
int skipped_devices();
std::size_t memory_bytes();
std::string chip();
/// The code that FAKE_HIP_FAILS plans for a function, or kSuccess.
HipError planned_failure(const char* function);
/// The calling thread's device.
int& current_device();
Device& device();

/// The allocation that holds an address, and where it begins; nullptr for none.
const std::pair<const std::uint64_t, Allocation>* allocation_at(std::uint64_t address);

/// Remembers an error for hipGetLastError.
int answer(int error);

}  // namespace heddle::amd::fake

/// The first line of each function of HIP.
#define HEDDLE_FAKE_HIP_BEGIN                                    \
  const std::scoped_lock lock(heddle::amd::fake::state().mutex); \
  if (const int planned = heddle::amd::fake::planned_failure(__func__)) return heddle::amd::fake::answer(planned)
