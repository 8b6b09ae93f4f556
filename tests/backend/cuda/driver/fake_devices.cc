// A libcuda.so.1 without a GPU. See fake_driver.h.
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>

#include "fake_driver_state.h"

namespace heddle::cuda {

FakeDriver state{};
std::mutex mutex;

namespace {

std::atomic<bool> started{false};
std::atomic<bool> ended{false};

int setting(const char* name, int fallback) {
  const char* text = std::getenv(name);
  return text == nullptr ? fallback : std::atoi(text);
}
std::size_t memory_bytes() {
  static const int bytes = setting("FAKE_CUDA_BYTES", 1 << 30);
  return static_cast<std::size_t>(bytes);
}

/// This thread's current contexts. Without a destructor: the library is called while the process ends, too.
struct ContextStack {
  CUcontext entries[64];
  int depth;
  bool empty() const { return depth == 0; }
  CUcontext back() const { return entries[depth - 1]; }
};
thread_local ContextStack contexts{};

std::atomic<bool> capturing = false;  // one stream at a time
CUstream captured = nullptr;

struct Block {
  std::size_t bytes;
  int device;
};
std::map<CUdeviceptr, Block> blocks;

const std::pair<const CUdeviceptr, Block>* block_at(CUdeviceptr pointer) {
  auto after = blocks.upper_bound(pointer);
  if (after == blocks.begin()) return nullptr;
  --after;
  return pointer < after->first + after->second.bytes ? &*after : nullptr;
}
/// False for a range that begins in device memory and ends outside of it.
bool inside(CUdeviceptr pointer, std::size_t bytes) {
  const auto* block = block_at(pointer);
  return block == nullptr || pointer + bytes <= block->first + block->second.bytes;
}

/// Real drivers end in this way: before objects that were static when they started, and with all their memory.
void end_driver() {
  ended = true;
  const std::scoped_lock lock(mutex);
  for (const auto& [pointer, block] : blocks) std::free(reinterpret_cast<void*>(pointer));
  blocks.clear();
}

}  // namespace

int device_count() {
  static const int count = setting("FAKE_CUDA_DEVICES", 2);
  return count;
}
int current_device() { return contexts.empty() || contexts.back() == nullptr ? -1 : number_of(contexts.back()); }

void keep_step(FakeStep::Kind kind, CUstream stream, CUevent event, const char* name) {
  FakeStep& step = state.stepped[state.steps++ % kFakeStepsKept];
  step = {kind, current_device(), stream, event, {}};
  std::string_view(name).copy(step.name, kFakeNameBytes - 1);
}

CUresult down() {
  if (ended) {
    ++state.after_the_end;
    return CUDA_ERROR_DEINITIALIZED;
  }
  return started ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
}
CUresult down_here() {
  if (const CUresult result = down(); result != CUDA_SUCCESS) return result;
  return current_device() < 0 ? CUDA_ERROR_INVALID_CONTEXT : CUDA_SUCCESS;
}

extern "C" {

const FakeDriver* fake_cuda_driver();
const FakeDriver* fake_cuda_driver() { return &state; }
int fake_cuda_launches();
int fake_cuda_launches() { return state.launches; }

CUresult cuInit(unsigned int) {
  ++state.inits;
  const CUresult result = setting("FAKE_CUDA_INIT", CUDA_SUCCESS);
  if (result == CUDA_SUCCESS && !started.exchange(true)) std::atexit(end_driver);
  return result;
}
CUresult cuDriverGetVersion(int* version) {
  *version = setting("FAKE_CUDA_VERSION", 13000);
  return CUDA_SUCCESS;
}
CUresult cuGetErrorName(CUresult error, const char** name) {
  *name = error == CUDA_ERROR_NO_DEVICE ? "CUDA_ERROR_NO_DEVICE" : error == 999 ? nullptr : "CUDA_ERROR_FAKE";
  return *name == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
CUresult cuGetErrorString(CUresult error, const char** words) {
  *words = error == CUDA_ERROR_NO_DEVICE ? "no CUDA-capable device is detected" : "as the fake says";
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int* count) {
  NEEDS_DRIVER;
  *count = device_count();
  return CUDA_SUCCESS;
}
CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  NEEDS_DRIVER;
  *device = ordinal;
  return ordinal >= 0 && ordinal < device_count() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}
CUresult cuDeviceGetName(char* name, int size, CUdevice device) {
  NEEDS_DRIVER;
  std::strncpy(name, ("Fake H200 number " + std::to_string(device)).c_str(), static_cast<std::size_t>(size));
  return CUDA_SUCCESS;
}
CUresult cuDeviceTotalMem_v2(std::size_t* bytes, CUdevice) {
  NEEDS_DRIVER;
  *bytes = memory_bytes();
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice) {
  NEEDS_DRIVER;
  switch (attribute) {
    case CUdevice_attribute::clock_rate:
      *value = 1980000;
      return CUDA_SUCCESS;
    case CUdevice_attribute::multiprocessor_count:
      *value = 132;
      return CUDA_SUCCESS;
    case CUdevice_attribute::l2_cache_size:
      *value = 50 << 20;
      return CUDA_SUCCESS;
    case CUdevice_attribute::compute_capability_major:
      *value = 9;
      return CUDA_SUCCESS;
    case CUdevice_attribute::compute_capability_minor:
      *value = 0;
      return CUDA_SUCCESS;
    case CUdevice_attribute::max_shared_memory_per_block_optin:
      *value = 227 << 10;
      return CUDA_SUCCESS;
  }
  return CUDA_ERROR_INVALID_VALUE;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  NEEDS_DRIVER;
  ++state.retains;
  *context = handle_of<CUcontext>(device);
  return CUDA_SUCCESS;
}
CUresult cuCtxGetCurrent(CUcontext* context) {
  NEEDS_DRIVER;
  *context = contexts.empty() ? nullptr : contexts.back();
  return CUDA_SUCCESS;
}
CUresult cuCtxPushCurrent_v2(CUcontext context) {
  NEEDS_DRIVER;
  if (contexts.depth == 64) return CUDA_ERROR_INVALID_CONTEXT;
  ++state.pushes;
  contexts.entries[contexts.depth++] = context;
  return CUDA_SUCCESS;
}
CUresult cuCtxPopCurrent_v2(CUcontext* context) {
  NEEDS_CONTEXT;
  ++state.pops;
  *context = contexts.back();
  --contexts.depth;
  return CUDA_SUCCESS;
}
CUresult cuCtxSynchronize() {
  NEEDS_CONTEXT;
  ++state.synchronizes;
  return CUDA_SUCCESS;
}

CUresult cuMemGetInfo_v2(std::size_t* free, std::size_t* total) {
  NEEDS_CONTEXT;
  const std::scoped_lock lock(mutex);
  *total = *free = memory_bytes();
  for (const auto& [pointer, block] : blocks) *free -= block.device == current_device() ? block.bytes : 0;
  return CUDA_SUCCESS;
}
CUresult cuMemAlloc_v2(CUdeviceptr* memory, std::size_t bytes) {
  std::size_t free = 0;
  std::size_t total = 0;
  if (const CUresult result = cuMemGetInfo_v2(&free, &total); result != CUDA_SUCCESS) return result;
  if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  if (bytes > free) return CUDA_ERROR_OUT_OF_MEMORY;
  const std::scoped_lock lock(mutex);
  *memory = reinterpret_cast<CUdeviceptr>(std::aligned_alloc(512, (bytes + 511) / 512 * 512));
  blocks[*memory] = {bytes, current_device()};
  ++state.allocations;
  return CUDA_SUCCESS;
}
CUresult cuMemFree_v2(CUdeviceptr memory) {
  NEEDS_CONTEXT;
  const std::scoped_lock lock(mutex);
  const auto block = blocks.find(memory);
  if (block == blocks.end() || block->second.device != current_device()) {
    ++state.wrong_frees;
    return CUDA_ERROR_INVALID_VALUE;
  }
  std::free(reinterpret_cast<void*>(memory));
  blocks.erase(block);
  ++state.frees;
  return CUDA_SUCCESS;
}
CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, std::size_t bytes, CUstream) {
  NEEDS_CONTEXT;
  const std::scoped_lock lock(mutex);
  if (!inside(to, bytes) || !inside(from, bytes)) return CUDA_ERROR_INVALID_VALUE;
  std::memmove(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes);
  ++state.copies;
  return CUDA_SUCCESS;
}
CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void* from, std::size_t bytes) {
  return cuMemcpyAsync(to, reinterpret_cast<CUdeviceptr>(from), bytes, nullptr);
}
CUresult cuMemcpyDtoH_v2(void* to, CUdeviceptr from, std::size_t bytes) {
  return cuMemcpyAsync(reinterpret_cast<CUdeviceptr>(to), from, bytes, nullptr);
}
CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, std::size_t bytes, CUstream) {
  NEEDS_CONTEXT;
  const std::scoped_lock lock(mutex);
  if (block_at(to) == nullptr || !inside(to, bytes)) return CUDA_ERROR_INVALID_VALUE;
  std::memset(reinterpret_cast<void*>(to), value, bytes);
  return CUDA_SUCCESS;
}
CUresult cuPointerGetAttributes(unsigned int count, CUpointer_attribute* attributes, void** values,
                                CUdeviceptr pointer) {
  NEEDS_DRIVER;
  const std::scoped_lock lock(mutex);
  const auto* block = block_at(pointer);
  for (unsigned int i = 0; i < count; ++i) {
    const bool type = attributes[i] == CUpointer_attribute::memory_type;
    const int value = type ? static_cast<int>(CUmemorytype::device) : block == nullptr ? 0 : block->second.device;
    *static_cast<int*>(values[i]) = block == nullptr ? (type ? 0 : -2) : value;
  }
  return CUDA_SUCCESS;
}
CUresult cuPointerGetAttribute(void* value, CUpointer_attribute attribute, CUdeviceptr pointer) {
  NEEDS_DRIVER;
  {
    const std::scoped_lock lock(mutex);
    if (block_at(pointer) == nullptr) return CUDA_ERROR_INVALID_VALUE;
  }
  return cuPointerGetAttributes(1, &attribute, &value, pointer);
}

CUresult cuStreamCreate(CUstream* stream, CUstream_flags) {
  NEEDS_CONTEXT;
  static std::atomic<int> count = 0;
  *stream = handle_of<CUstream>(count++ * device_count() + current_device());
  return CUDA_SUCCESS;
}
CUresult cuStreamDestroy_v2(CUstream) { return down_here(); }
CUresult cuStreamSynchronize(CUstream) {
  NEEDS_CONTEXT;
  ++state.synchronizes;
  return CUDA_SUCCESS;
}
CUresult cuStreamQuery(CUstream) { return down_here(); }
CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned int) {
  NEEDS_CONTEXT;
  keep_step(FakeStep::wait, stream, event);
  return CUDA_SUCCESS;
}
CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus* status) {
  NEEDS_CONTEXT;
  *status = capturing && stream == captured ? CUstreamCaptureStatus::active : CUstreamCaptureStatus::none;
  return CUDA_SUCCESS;
}
CUresult cuStreamGetCtx(CUstream stream, CUcontext* context) {
  NEEDS_CONTEXT;
  *context = stream == nullptr ? contexts.back() : handle_of<CUcontext>(device_of(stream));
  return CUDA_SUCCESS;
}

CUresult cuEventCreate(CUevent* event, CUevent_flags) {
  NEEDS_CONTEXT;
  static std::atomic<int> count = 0;
  *event = handle_of<CUevent>(count++);
  return CUDA_SUCCESS;
}
CUresult cuEventDestroy_v2(CUevent) { return down_here(); }
CUresult cuEventRecord(CUevent event, CUstream stream) {
  NEEDS_CONTEXT;
  keep_step(FakeStep::record, stream, event);
  return CUDA_SUCCESS;
}
CUresult cuEventSynchronize(CUevent) {
  NEEDS_CONTEXT;
  ++state.synchronizes;
  return CUDA_SUCCESS;
}
#ifndef FAKE_LACKS_A_FUNCTION
CUresult cuEventElapsedTime(float* milliseconds, CUevent, CUevent) {
  NEEDS_CONTEXT;
  *milliseconds = 1;
  return CUDA_SUCCESS;
}
#endif

// It knows no graphs.
CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode) {
  NEEDS_CONTEXT;
  if (capturing.exchange(true)) return CUDA_ERROR_INVALID_VALUE;
  captured = stream;
  return CUDA_SUCCESS;
}
CUresult cuStreamEndCapture(CUstream, CUgraph* graph) {
  NEEDS_CONTEXT;
  *graph = nullptr;
  return capturing.exchange(false) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuGraphInstantiateWithFlags(CUgraphExec*, CUgraph, unsigned long long) { return CUDA_ERROR_INVALID_VALUE; }
CUresult cuGraphLaunch(CUgraphExec, CUstream) { return CUDA_ERROR_INVALID_VALUE; }
CUresult cuGraphExecDestroy(CUgraphExec) { return CUDA_ERROR_INVALID_VALUE; }
CUresult cuGraphDestroy(CUgraph) { return CUDA_ERROR_INVALID_VALUE; }

}  // extern "C"

}  // namespace heddle::cuda
