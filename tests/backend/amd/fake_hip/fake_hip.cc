// Devices, errors, streams, events.
#include "backend/amd/fake_hip/fake_hip.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "backend/amd/fake_hip/fake_hip_state.h"

namespace heddle::amd::fake {

State& state() {
  static State* const only = new State;  // calls may come while the process ends
  return *only;
}

std::string setting(const char* name, const char* otherwise) {
  const char* text = std::getenv(name);
  return text ? text : otherwise;
}

int device_count() { return std::atoi(setting("FAKE_HIP_DEVICES", "2").c_str()); }
int skipped_devices() { return std::atoi(setting("FAKE_HIP_SKIPPED", "0").c_str()); }
std::string chip() { return setting("FAKE_HIP_CHIP", "gfx1100"); }

HipError planned_failure(const char* function) {
  const std::string plan = setting("FAKE_HIP_FAILS", "");
  const std::size_t equals = plan.find('=');
  if (equals == std::string::npos || plan.substr(0, equals) != function) return kSuccess;
  return static_cast<HipError>(std::atoi(plan.c_str() + equals + 1));
}

int& current_device() {
  thread_local int number = 0;
  return number;
}

Device& device() {
  Device& current = state().devices[current_device()];
  current.number = current_device();
  return current;
}

int answer(int error) {
  if (error != kSuccess) state().last_error = error;
  return error;
}

}  // namespace heddle::amd::fake

using namespace heddle::amd::fake;  // NOLINT: this file is the library's face

namespace {

struct Event {
  std::chrono::steady_clock::time_point time;
  bool recorded = false;
};

const char* name_of(int error) {
  switch (error) {
    case kSuccess:
      return "hipSuccess";
    case kInvalidValue:
      return "hipErrorInvalidValue";
    case kOutOfMemory:
      return "hipErrorOutOfMemory";
    case kNotInitialized:
      return "hipErrorNotInitialized";
    case kNoDevice:
      return "hipErrorNoDevice";
    case kInvalidDevice:
      return "hipErrorInvalidDevice";
    case kInvalidImage:
      return "hipErrorInvalidImage";
    case kNoBinaryForGpu:
      return "hipErrorNoBinaryForGpu";
    case kInvalidHandle:
      return "hipErrorInvalidHandle";
    case kNotFound:
      return "hipErrorNotFound";
    case kNotReady:
      return "hipErrorNotReady";
    case kIllegalAddress:
      return "hipErrorIllegalAddress";
    case kLaunchFailure:
      return "hipErrorLaunchFailure";
    case kNotSupported:
      return "hipErrorNotSupported";
    default:
      return "hipErrorUnknown";
  }
}

}  // namespace

extern "C" {

int hipInit(unsigned flags) {
  HEDDLE_FAKE_HIP_BEGIN;
  if (flags != 0) return answer(kInvalidValue);
  return answer(device_count() > 0 ? kSuccess : kInvalidDevice);
}

int hipRuntimeGetVersion(int* version) {
  HEDDLE_FAKE_HIP_BEGIN;
  *version = std::atoi(setting("FAKE_HIP_VERSION", "60000000").c_str());
  return kSuccess;
}

int hipDriverGetVersion(int* version) { return hipRuntimeGetVersion(version); }

int hipGetDeviceCount(int* count) {
  HEDDLE_FAKE_HIP_BEGIN;
  *count = device_count();
  return answer(*count > 0 ? kSuccess : kNoDevice);
}

int hipSetDevice(int number) {
  HEDDLE_FAKE_HIP_BEGIN;
  if (number < 0 || number >= device_count()) return answer(kInvalidDevice);
  current_device() = number;
  return kSuccess;
}

int hipGetDevice(int* number) {
  HEDDLE_FAKE_HIP_BEGIN;
  *number = current_device();
  return kSuccess;
}

int hipDeviceGetName(char* name, int length, int number) {
  HEDDLE_FAKE_HIP_BEGIN;
  if (number < 0 || number >= device_count() || length <= 0) return answer(kInvalidDevice);
  const std::string text = "simulated " + chip();
  name[text.copy(name, static_cast<std::size_t>(length) - 1)] = '\0';
  return kSuccess;
}

int hipDeviceTotalMem(std::size_t* bytes, int number) {
  HEDDLE_FAKE_HIP_BEGIN;
  if (number < 0 || number >= device_count()) return answer(kInvalidDevice);
  *bytes = memory_bytes();
  return kSuccess;
}

/// Device n is at place n + 3 of the bus, as the HSA library has it.
int hipDeviceGetPCIBusId(char* id, int length, int number) {
  HEDDLE_FAKE_HIP_BEGIN;
  if (number < 0 || number >= device_count()) return answer(kInvalidDevice);
  std::snprintf(id, static_cast<std::size_t>(length), "0000:%02X:00.0", number + 3 + skipped_devices());
  return kSuccess;
}

const char* hipGetErrorName(int error) { return name_of(error); }
const char* hipGetErrorString(int error) { return name_of(error); }

int hipGetLastError() {
  const std::scoped_lock lock(state().mutex);
  return std::exchange(state().last_error, kSuccess);
}
int hipPeekAtLastError() {
  const std::scoped_lock lock(state().mutex);
  return state().last_error;
}

int hipDeviceSynchronize() {
  HEDDLE_FAKE_HIP_BEGIN;
  return answer(device().broken);
}

// --- streams: what is given to one has been done when the call returns ---

int hipStreamCreateWithFlags(void** stream, unsigned) {
  HEDDLE_FAKE_HIP_BEGIN;
  *stream = new int(current_device());
  return kSuccess;
}
int hipStreamCreate(void** stream) { return hipStreamCreateWithFlags(stream, 0); }
int hipStreamDestroy(void* stream) {
  HEDDLE_FAKE_HIP_BEGIN;
  if (!stream) return answer(kInvalidHandle);
  delete static_cast<int*>(stream);
  return kSuccess;
}
int hipStreamSynchronize(void*) {
  HEDDLE_FAKE_HIP_BEGIN;
  return answer(device().broken);
}
int hipStreamQuery(void*) {
  HEDDLE_FAKE_HIP_BEGIN;
  return answer(device().broken);
}
int hipStreamIsCapturing(void* stream, int* status) {
  HEDDLE_FAKE_HIP_BEGIN;
  *status = stream != nullptr && stream == state().captured ? 1 : 0;
  return kSuccess;
}
int hipStreamWaitEvent(void*, void* event, unsigned) {
  HEDDLE_FAKE_HIP_BEGIN;
  return answer(event ? kSuccess : kInvalidHandle);
}
int hipStreamGetDevice(void* stream, int* number) {
  HEDDLE_FAKE_HIP_BEGIN;
  *number = stream ? *static_cast<int*>(stream) : current_device();
  return kSuccess;
}

// --- events ---

int hipEventCreateWithFlags(void** event, unsigned) {
  HEDDLE_FAKE_HIP_BEGIN;
  *event = new Event;
  return kSuccess;
}
int hipEventCreate(void** event) { return hipEventCreateWithFlags(event, 0); }
int hipEventDestroy(void* event) {
  HEDDLE_FAKE_HIP_BEGIN;
  if (!event) return answer(kInvalidHandle);
  delete static_cast<Event*>(event);
  return kSuccess;
}
int hipEventRecord(void* event, void*) {
  HEDDLE_FAKE_HIP_BEGIN;
  if (!event) return answer(kInvalidHandle);
  *static_cast<Event*>(event) = {std::chrono::steady_clock::now(), true};
  return kSuccess;
}
int hipEventSynchronize(void* event) {
  HEDDLE_FAKE_HIP_BEGIN;
  return answer(event ? device().broken : kInvalidHandle);
}
int hipEventQuery(void* event) { return hipEventSynchronize(event); }
int hipEventElapsedTime(float* milliseconds, void* from, void* to) {
  HEDDLE_FAKE_HIP_BEGIN;
  const auto *first = static_cast<Event*>(from), *last = static_cast<Event*>(to);
  if (!first || !last || !first->recorded || !last->recorded) return answer(kInvalidHandle);
  *milliseconds = std::chrono::duration<float, std::milli>(last->time - first->time).count();
  return kSuccess;
}

// --- for tests ---

std::size_t fake_hip_take_findings(char* text, std::size_t size) {
  const std::scoped_lock lock(state().mutex);
  const std::string findings = std::exchange(state().findings, {});
  if (size > 0) text[findings.copy(text, size - 1)] = '\0';
  return findings.size() + 1;
}
std::size_t fake_hip_launches() {
  const std::scoped_lock lock(state().mutex);
  return state().launches;
}
std::size_t fake_hip_allocated() {
  const std::scoped_lock lock(state().mutex);
  std::size_t bytes = 0;
  for (const auto& [number, each] : state().devices) bytes += each.allocated;
  return bytes;
}
void fake_hip_capture(void* stream) {
  const std::scoped_lock lock(state().mutex);
  state().captured = stream;
  if (stream != nullptr) state().recorded.clear();
}
void fake_hip_replay() {
  std::vector<std::function<void()>> recorded;
  {
    const std::scoped_lock lock(state().mutex);
    recorded = state().recorded;
  }
  for (const auto& launch : recorded) launch();
}
void fake_hip_set_wave_order(unsigned long long order) {
  const std::scoped_lock lock(state().mutex);
  state().wave_order = order;
}
}
