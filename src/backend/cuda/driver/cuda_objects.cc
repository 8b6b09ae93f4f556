#include "backend/cuda/driver/cuda_objects.h"

#include <fmt/format.h>

#include <array>
#include <atomic>
#include <mutex>
#include <optional>
#include <utility>

#include "backend/libraries/found_devices.h"
#include "backend/libraries/out_of_memory.h"
#include "base/environment.h"
#include "heddle/error.h"

namespace heddle::cuda {
namespace {

int attribute_of(CUdevice device, CUdevice_attribute attribute) {
  int value = 0;
  check(driver().DeviceGetAttribute(&value, attribute, device), "reading an attribute of a CUDA device");
  return value;
}

device::CudaCaps caps_of(int index, int driver_version) {
  const Driver& cu = driver();
  CUdevice device = 0;
  check(cu.DeviceGet(&device, index), "opening a CUDA device");
  std::array<char, 256> name{};
  check(cu.DeviceGetName(name.data(), static_cast<int>(name.size()) - 1, device), "reading the name of a CUDA device");
  std::size_t bytes = 0;
  check(cu.DeviceTotalMem(&bytes, device), "reading the memory size of a CUDA device");
  return {.index = index,
          .name = name.data(),
          .major = attribute_of(device, CUdevice_attribute::compute_capability_major),
          .minor = attribute_of(device, CUdevice_attribute::compute_capability_minor),
          .multiprocessors = attribute_of(device, CUdevice_attribute::multiprocessor_count),
          .shared_memory_bytes = attribute_of(device, CUdevice_attribute::max_shared_memory_per_block_optin),
          .l2_bytes = attribute_of(device, CUdevice_attribute::l2_cache_size),
          .memory_bytes = static_cast<std::int64_t>(bytes),
          .driver_version = driver_version};
}

using Found = libraries::FoundDevices<device::CudaCaps>;

std::vector<device::CudaCaps> list_devices() {
  int version = 0;
  int count = 0;
  check(driver().DriverGetVersion(&version), "reading the version of the CUDA driver");
  check(driver().DeviceGetCount(&count), "counting the CUDA devices");
  std::vector<device::CudaCaps> result;
  for (int index = 0; index < count; ++index) result.push_back(caps_of(index, version));
  return result;
}

/// Looked for at the first call. Never destroyed: objects of static life free device memory while the process ends.
const Found& found() {
  static const Found& once = *new Found(libraries::find_devices(list_devices, "the CUDA driver lists no device"));
  return once;
}

/// The primary contexts retained so far, by device. Reading one that is there takes no lock. Never destroyed, and the
/// contexts never released: there is one a device, and other users of the process may outlive this library.
struct PrimaryContexts {
  explicit PrimaryContexts(std::size_t count) : contexts(count) {}
  std::mutex mutex;
  std::vector<std::atomic<CUcontext>> contexts;
};

PrimaryContexts& primary_contexts() {
  static PrimaryContexts& once = *new PrimaryContexts(devices().size());
  return once;
}

[[noreturn]] void throw_out_of_memory(int device, std::size_t bytes) {
  libraries::MemoryLeft left{};
  const bool known = driver().MemGetInfo(&left.free, &left.total) == CUDA_SUCCESS;
  libraries::throw_out_of_memory(bytes, fmt::format("CUDA device {}", device), "the driver",
                                 known ? std::optional(left) : std::nullopt);
}

/// Says what was under way when the driver refused a kernel. It loads kernels that an NVRTC of its own major version or
/// of an older one made; of a newer one's kernels it says no more than that they are invalid.
std::string loading(int compiler_version) {
  if (compiler_version == 0) return "loading a compiled kernel";
  const int driver_version = started_version(), driver_major = driver_version / 1000;
  std::string versions = fmt::format("loading a kernel of NVRTC {} into a driver of CUDA {}",
                                     version_text(compiler_version), version_text(driver_version));
  if (compiler_version / 1000 <= driver_major) return versions;
  // Since CUDA 13 the wheel's name has no number.
  const std::string wheel = fmt::format("nvidia-cuda-nvrtc{}", driver_major > 12 ? fmt::format("=={}.*", driver_major)
                                                                                 : fmt::format("-cu{}", driver_major));
  return fmt::format("{}, which needs an NVRTC of CUDA {} at most ({} may name it; the wheel {} holds one)", versions,
                     driver_major, name_of(base::Option::nvrtc), wheel);
}

}  // namespace

const std::vector<device::CudaCaps>& devices() { return found().devices; }

std::string architecture_of(int device) {
  return device::architecture_of(devices().at(static_cast<std::size_t>(device)));
}

std::string driver_missing() { return libraries::missing_of(found); }

CUcontext primary_context(int device) {
  driver();  // where there is none, its sentence says more than the number of devices
  PrimaryContexts& all = primary_contexts();
  if (device < 0 || static_cast<std::size_t>(device) >= all.contexts.size()) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("there is no CUDA device {}; this machine has {}", device, all.contexts.size()));
  }
  std::atomic<CUcontext>& slot = all.contexts[static_cast<std::size_t>(device)];
  if (CUcontext context = slot.load(std::memory_order_acquire)) return context;
  const std::scoped_lock lock(all.mutex);
  if (CUcontext context = slot.load(std::memory_order_relaxed)) return context;
  CUdevice handle = 0;
  CUcontext context = nullptr;
  check(driver().DeviceGet(&handle, device), "opening a CUDA device");
  check(driver().DevicePrimaryCtxRetain(&context, handle), "retaining the primary context of a CUDA device");
  slot.store(context, std::memory_order_release);
  return context;
}

ContextScope::ContextScope(int device) {
  CUcontext wanted = primary_context(device);
  CUcontext current = nullptr;
  check(driver().CtxGetCurrent(&current), "asking for the current CUDA context");
  if (current == wanted) return;
  check(driver().CtxPushCurrent(wanted), "making a CUDA context current");
  pushed_ = true;
}

ContextScope::~ContextScope() {
  CUcontext popped = nullptr;
  if (pushed_) driver().CtxPopCurrent(&popped);
}

DeviceMemory::DeviceMemory(int device, std::size_t bytes) : device_(device), bytes_(bytes) {
  const ContextScope scope(device);
  if (bytes == 0) return;
  CUdeviceptr memory = 0;
  const CUresult result = driver().MemAlloc(&memory, bytes);
  if (result == CUDA_ERROR_OUT_OF_MEMORY) throw_out_of_memory(device, bytes);
  check(result, "allocating device memory");
  data_ = reinterpret_cast<void*>(memory);
}

DeviceMemory::~DeviceMemory() { release(); }

DeviceMemory::DeviceMemory(DeviceMemory&& other) noexcept
    : device_(other.device_), data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

DeviceMemory& DeviceMemory::operator=(DeviceMemory&& other) noexcept {
  if (this == &other) return *this;
  release();
  device_ = other.device_;
  data_ = std::exchange(other.data_, nullptr);
  bytes_ = std::exchange(other.bytes_, 0);
  return *this;
}

// While the process ends the driver may be gone: it then answers CUDA_ERROR_DEINITIALIZED to all of this, and has freed
// the memory itself.
void DeviceMemory::release() noexcept {
  if (data_ == nullptr) return;
  try {
    const ContextScope scope(device_);
    driver().MemFree(reinterpret_cast<CUdeviceptr>(data_));
  } catch (...) {
  }
  data_ = nullptr;
  bytes_ = 0;
}

void copy_and_wait(int device, void* to, const void* from, std::size_t bytes) {
  const ContextScope scope(device);
  if (bytes == 0) return;
  // On the legacy stream: after what other blocking streams have been given.
  check(driver().MemcpyAsync(reinterpret_cast<CUdeviceptr>(to), reinterpret_cast<CUdeviceptr>(from), bytes, nullptr),
        "copying to or from device memory");
  check(driver().StreamSynchronize(nullptr), "waiting for a copy to or from device memory");
}

Module::Module(int device, std::span<const char> cubin, int compiler_version) : device_(device) {
  const ContextScope scope(device);
  const CUresult result = driver().ModuleLoadDataEx(&module_, cubin.data(), 0, nullptr, nullptr);
  if (result != CUDA_SUCCESS) check(result, loading(compiler_version).c_str());
}

Module::~Module() {
  try {
    const ContextScope scope(device_);
    driver().ModuleUnload(module_);
  } catch (...) {
  }
}

CUfunction Module::function(const char* name, int shared_bytes) const {
  const ContextScope scope(device_);
  const Driver& cu = driver();
  CUfunction function = nullptr;
  check(cu.ModuleGetFunction(&function, module_, name), fmt::format("looking for the kernel '{}'", name).c_str());
  check(cu.FuncSetAttribute(function, CUfunction_attribute::max_dynamic_shared_size_bytes, shared_bytes),
        fmt::format("allowing the kernel '{}' {} bytes of shared memory", name, shared_bytes).c_str());
  // Drivers load code lazily. Asking for an attribute makes them do it here, not in the first launch, which may be one
  // that a graph captures.
  int registers = 0;
  check(cu.FuncGetAttribute(&registers, CUfunction_attribute::num_regs, function),
        fmt::format("loading the kernel '{}'", name).c_str());
  return function;
}

void launch_kernel(CUfunction function, const Launch& launch, void* stream, void** parameters, const char* what) {
  CUlaunchAttribute overlaps{};
  overlaps.id = CUlaunchAttributeID::programmatic_stream_serialization;
  overlaps.value.programmaticStreamSerializationAllowed = 1;
  const CUlaunchConfig config = {.gridDimX = launch.ctas,
                                 .gridDimY = launch.height,
                                 .gridDimZ = 1,
                                 .blockDimX = launch.threads,
                                 .blockDimY = 1,
                                 .blockDimZ = 1,
                                 .sharedMemBytes = launch.shared_bytes,
                                 .hStream = static_cast<CUstream>(stream),
                                 .attrs = launch.overlaps ? &overlaps : nullptr,
                                 .numAttrs = launch.overlaps ? 1U : 0U};
  check(driver().LaunchKernelEx(&config, function, parameters, nullptr), what);
}

PointerLocation location_of(const void* pointer) {
  if (pointer == nullptr || devices().empty()) return {};
  auto type = CUmemorytype::unknown;
  int device = -1;
  std::array attributes{CUpointer_attribute::memory_type, CUpointer_attribute::device_ordinal};
  std::array<void*, 2> values{&type, &device};
  const CUresult result = driver().PointerGetAttributes(static_cast<unsigned>(attributes.size()), attributes.data(),
                                                        values.data(), reinterpret_cast<CUdeviceptr>(pointer));
  // A pointer that the driver does not know is no error there: its type stays unknown.
  check(result, "asking where a pointer's memory is");
  return {.device = type == CUmemorytype::device || type == CUmemorytype::unified ? device : -1};
}

}  // namespace heddle::cuda
