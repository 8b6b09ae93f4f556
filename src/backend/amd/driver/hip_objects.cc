#include "backend/amd/driver/hip_objects.h"

#include <fmt/format.h>

#include <array>
#include <map>
#include <optional>

#include "backend/amd/driver/hsa.h"
#include "backend/libraries/found_devices.h"
#include "backend/libraries/out_of_memory.h"
#include "device/amd_architectures.h"
#include "heddle/error.h"

namespace heddle::amd {
namespace {

constexpr int kHip6 = 60'000'000;  // the first version that numbers the types of memory anew

/// LDS that a workgroup may have.
std::int64_t shared_memory_of(const std::string& architecture) {
  const device::AmdArchitecture* row = device::amd_architecture(architecture);
  return std::int64_t{row != nullptr ? row->lds_kib : 64} << 10;
}

device::AmdCaps caps_of(int index, const std::vector<HsaGpu>& gpus, std::map<std::string, int>& used) {
  const Hip& api = hip();
  std::array<char, 256> text{};
  check(api.DeviceGetPCIBusId(text.data(), static_cast<int>(text.size()) - 1, index), "asking for a GPU's bus");
  const std::string bus_id = text.data();
  const HsaGpu* const gpu = find_gpu(gpus, bus_id, used[bus_id]++);
  if (gpu == nullptr) {
    throw Error(ErrorCode::unsupported,
                fmt::format("HIP's device {} is at {} of the PCI bus, where HSA lists no GPU", index, bus_id));
  }
  text = {};
  check(api.DeviceGetName(text.data(), static_cast<int>(text.size()) - 1, index), "reading a GPU's name");
  std::size_t bytes = 0;
  check(api.DeviceTotalMem(&bytes, index), "reading the memory size of a GPU");
  int version = 0;
  check(api.RuntimeGetVersion(&version), "reading the version of HIP");
  return {.index = index,
          .name = text[0] != '\0' ? text.data() : gpu->name,  // HIP has no name for some
          .architecture = gpu->architecture,
          .compute_units = gpu->compute_units,
          .shared_memory_bytes = shared_memory_of(gpu->architecture),
          .l2_bytes = gpu->l2_bytes,
          .memory_bytes = static_cast<std::int64_t>(bytes),
          .runtime_version = version};
}

using Found = libraries::FoundDevices<device::AmdCaps>;

std::vector<device::AmdCaps> list_devices() {
  int count = 0;
  const HipError result = hip().GetDeviceCount(&count);
  if (result == kHipNoDevice) return {};
  check(result, "counting HIP's devices");
  const std::vector<HsaGpu> gpus = hsa_gpus();
  std::map<std::string, int> used;
  std::vector<device::AmdCaps> result_list;
  for (int index = 0; index < count; ++index) result_list.push_back(caps_of(index, gpus, used));
  return result_list;
}

/// Looked for at the first call. Never destroyed: objects of static life free device memory while the process ends.
const Found& found() {
  static const Found& once = *new Found(libraries::find_devices(list_devices, "HIP lists no device"));
  return once;
}

[[noreturn]] void throw_out_of_memory(int device, std::size_t bytes) {
  libraries::MemoryLeft left{};
  const bool known = hip().MemGetInfo(&left.free, &left.total) == kHipSuccess;
  libraries::throw_out_of_memory(bytes, fmt::format("ROCm device {}", device), "HIP",
                                 known ? std::optional(left) : std::nullopt);
}

HipStream stream_of(void* stream) { return static_cast<HipStream>(stream); }

bool is_device_memory(int type) {
  if (started_version() < kHip6) {
    return type == static_cast<int>(HipMemoryType5::device) || type == static_cast<int>(HipMemoryType5::unified);
  }
  return type == static_cast<int>(HipMemoryType6::device) || type == static_cast<int>(HipMemoryType6::managed) ||
         type == static_cast<int>(HipMemoryType6::unified);
}

}  // namespace

const std::vector<device::AmdCaps>& devices() { return found().devices; }

std::string hip_missing() { return libraries::missing_of(found); }

DeviceScope::DeviceScope(int device) {
  const Hip& api = hip();  // where there is none, its sentence says more than the number of devices
  if (device < 0 || static_cast<std::size_t>(device) >= devices().size()) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("there is no ROCm device {}; this machine has {}", device, devices().size()));
  }
  int current = -1;
  check(api.GetDevice(&current), "asking for the current ROCm device");
  if (current == device) return;
  check(api.SetDevice(device), "making a ROCm device current");
  before_ = current;
}

DeviceScope::~DeviceScope() {
  if (before_ >= 0) hip().SetDevice(before_);
}

DeviceMemory::DeviceMemory(int device, std::size_t bytes) : device_(device) {
  const DeviceScope scope(device);
  const HipError result = hip().Malloc(&data_, bytes);
  if (result == kHipOutOfMemory) throw_out_of_memory(device, bytes);
  check(result, "allocating device memory");
}

// While the process ends HIP may be gone: it then answers an error, and has freed the memory itself.
DeviceMemory::~DeviceMemory() {
  try {
    const DeviceScope scope(device_);
    hip().Free(data_);
  } catch (...) {
  }
}

void copy_and_wait(int device, void* to, const void* from, std::size_t bytes) {
  const DeviceScope scope(device);
  if (bytes == 0) return;
  // On the default stream: after what other blocking streams have been given.
  check(hip().MemcpyAsync(to, from, bytes, HipCopy::either_way, nullptr), "copying to or from device memory");
  check(hip().StreamSynchronize(nullptr), "waiting for a copy to or from device memory");
}

void wait(int device, const char* what) {
  const DeviceScope scope(device);
  check(hip().StreamSynchronize(nullptr), what);
}

bool is_capturing(int device, void* stream) {
  const DeviceScope scope(device);
  auto status = HipCapture::none;
  // An error: of the default stream while another one is captured. Launches on it say so themselves.
  return hip().StreamIsCapturing(stream_of(stream), &status) == kHipSuccess && status != HipCapture::none;
}

int device_of(const void* pointer) {
  if (pointer == nullptr || devices().empty()) return -1;
  const Hip& api = hip();
  const bool was_clear = api.PeekAtLastError() == kHipSuccess;
  int type = 0, device = -1;
  void* const asked = const_cast<void*>(pointer);
  const bool known = api.PointerGetAttribute(&type, HipPointerAttribute::memory_type, asked) == kHipSuccess &&
                     api.PointerGetAttribute(&device, HipPointerAttribute::device_ordinal, asked) == kHipSuccess;
  // For memory that HIP does not know it answers an error, which others would take for one of theirs.
  if (!known && was_clear) api.GetLastError();
  return known && is_device_memory(type) ? device : -1;
}

Module::Module(int device, std::span<const char> code) : device_(device) {
  const DeviceScope scope(device);
  const HipError result = hip().ModuleLoadData(&module_, code.data());
  const std::string& architecture = devices()[static_cast<std::size_t>(device)].architecture;
  check(result,
        fmt::format("loading a kernel for {} into HIP {}", architecture, version_text(started_version())).c_str());
}

Module::~Module() {
  try {
    const DeviceScope scope(device_);
    hip().ModuleUnload(module_);
  } catch (...) {
  }
}

HipFunction Module::function(const char* name) const {
  const DeviceScope scope(device_);
  HipFunction function = nullptr;
  check(hip().ModuleGetFunction(&function, module_, name), fmt::format("looking for the kernel '{}'", name).c_str());
  return function;
}

void launch_kernel(int device, HipFunction function, const Launch& launch, void* stream, void** parameters,
                   const char* what) {
  const DeviceScope scope(device);
  check(hip().ModuleLaunchKernel(function, launch.workgroups, launch.height, 1, launch.threads, 1, 1, 0,
                                 stream_of(stream), parameters, nullptr),
        what);
}

}  // namespace heddle::amd
