// Memory: allocations of devices and of the host, copies, fills.
#include <cstdlib>
#include <cstring>
#include <vector>

#include "backend/amd/fake_hip/fake_hip.h"
#include "backend/amd/fake_hip/fake_hip_state.h"

namespace heddle::amd::fake {

const std::pair<const std::uint64_t, Allocation>* allocation_at(std::uint64_t address) {
  const auto& all = state().allocations;
  auto after = all.upper_bound(address);
  if (after == all.begin()) return nullptr;
  --after;
  return address - after->first < after->second.bytes ? &*after : nullptr;
}

std::size_t memory_bytes() {
  return static_cast<std::size_t>(std::atoll(setting("FAKE_HIP_BYTES", "1073741824").c_str()));
}

namespace {

std::uint64_t address_of(const void* pointer) { return reinterpret_cast<std::uint64_t>(pointer); }

/// Is the range in device memory? A range that only begins there is an error of the caller.
enum class Where { kHost, kDevice, kBadRange };
Where where(const void* pointer, std::size_t bytes) {
  const auto* allocation = allocation_at(address_of(pointer));
  if (!allocation) return Where::kHost;
  return address_of(pointer) - allocation->first + bytes <= allocation->second.bytes ? Where::kDevice
                                                                                     : Where::kBadRange;
}

HipError copy(void* to, const void* from, std::size_t bytes) {
  if (bytes == 0) return kSuccess;
  if (!to || !from) return kInvalidValue;
  if (device().broken != kSuccess) return device().broken;
  const Where target = where(to, bytes), source = where(from, bytes);
  if (target == Where::kBadRange || source == Where::kBadRange) return kInvalidValue;
  std::vector<std::uint8_t> buffer(bytes);
  if (source == Where::kDevice) {
    state().memory.read(address_of(from), buffer);
  } else {
    std::memcpy(buffer.data(), from, bytes);
  }
  if (target == Where::kDevice) {
    state().memory.write(address_of(to), buffer);
  } else {
    std::memcpy(to, buffer.data(), bytes);
  }
  return kSuccess;
}

template <class Word>
HipError fill(void* to, Word value, std::size_t count) {
  const std::size_t bytes = count * sizeof(Word);
  if (bytes == 0) return kSuccess;
  if (where(to, bytes) != Where::kDevice) return kInvalidValue;
  std::vector<std::uint8_t> buffer(bytes);
  for (std::size_t i = 0; i < count; ++i) std::memcpy(buffer.data() + i * sizeof(Word), &value, sizeof(Word));
  state().memory.write(address_of(to), buffer);
  return kSuccess;
}

}  // namespace
}  // namespace heddle::amd::fake

using namespace heddle::amd::fake;  // NOLINT: this file is the library's face

extern "C" {

int hipMalloc(void** pointer, std::size_t bytes) {
  HEDDLE_FAKE_HIP_BEGIN;
  if (!pointer) return answer(kInvalidValue);
  *pointer = nullptr;
  if (device().broken != kSuccess) return answer(device().broken);
  if (bytes == 0) return kSuccess;
  if (bytes > memory_bytes() - device().allocated) return answer(kOutOfMemory);
  const std::uint64_t address = state().memory.allocate(bytes, "device memory");
  state().allocations[address] = {bytes, current_device()};
  if (const std::string fill = setting("FAKE_HIP_FILLS", ""); !fill.empty()) {
    state().memory.fill(address, static_cast<std::uint8_t>(std::atoi(fill.c_str())), bytes);
  }
  device().allocated += bytes;
  *pointer = reinterpret_cast<void*>(address);
  return kSuccess;
}
int hipMallocAsync(void** pointer, std::size_t bytes, void*) { return hipMalloc(pointer, bytes); }

int hipFree(void* pointer) {
  HEDDLE_FAKE_HIP_BEGIN;
  if (!pointer) return kSuccess;
  const auto found = state().allocations.find(address_of(pointer));
  if (found == state().allocations.end()) return answer(kInvalidValue);
  state().devices[found->second.device].allocated -= found->second.bytes;
  state().memory.free(found->first);
  state().allocations.erase(found);
  return kSuccess;
}
int hipFreeAsync(void* pointer, void*) { return hipFree(pointer); }

int hipHostMalloc(void** pointer, std::size_t bytes, unsigned) {
  HEDDLE_FAKE_HIP_BEGIN;
  *pointer = std::malloc(bytes);
  return answer(*pointer ? kSuccess : kOutOfMemory);
}
int hipHostFree(void* pointer) {
  HEDDLE_FAKE_HIP_BEGIN;
  std::free(pointer);
  return kSuccess;
}

int hipMemcpy(void* to, const void* from, std::size_t bytes, int) {
  HEDDLE_FAKE_HIP_BEGIN;
  return answer(copy(to, from, bytes));
}
int hipMemcpyAsync(void* to, const void* from, std::size_t bytes, int kind, void*) {
  return hipMemcpy(to, from, bytes, kind);
}
int hipMemcpyHtoD(void* to, const void* from, std::size_t bytes) { return hipMemcpy(to, from, bytes, 1); }
int hipMemcpyDtoH(void* to, const void* from, std::size_t bytes) { return hipMemcpy(to, from, bytes, 2); }
int hipMemcpyHtoDAsync(void* to, const void* from, std::size_t bytes, void*) { return hipMemcpy(to, from, bytes, 1); }
int hipMemcpyDtoHAsync(void* to, const void* from, std::size_t bytes, void*) { return hipMemcpy(to, from, bytes, 2); }

int hipMemset(void* to, int value, std::size_t bytes) {
  HEDDLE_FAKE_HIP_BEGIN;
  return answer(fill(to, static_cast<std::uint8_t>(value), bytes));
}
int hipMemsetAsync(void* to, int value, std::size_t bytes, void*) { return hipMemset(to, value, bytes); }
int hipMemsetD32Async(void* to, int value, std::size_t count, void*) {
  HEDDLE_FAKE_HIP_BEGIN;
  return answer(fill(to, static_cast<std::uint32_t>(value), count));
}

int hipMemGetInfo(std::size_t* free_bytes, std::size_t* all_bytes) {
  HEDDLE_FAKE_HIP_BEGIN;
  *all_bytes = memory_bytes();
  *free_bytes = *all_bytes - device().allocated;
  return kSuccess;
}

int hipMemGetAddressRange(void** base, std::size_t* bytes, void* pointer) {
  HEDDLE_FAKE_HIP_BEGIN;
  const auto* allocation = allocation_at(address_of(pointer));
  if (!allocation) return answer(kInvalidValue);
  *base = reinterpret_cast<void*>(allocation->first);
  *bytes = allocation->second.bytes;
  return kSuccess;
}

/// The device's number, and the type of memory, which HIP 5 numbers otherwise than 6. Nothing of memory that hipMalloc
/// did not give.
int hipPointerGetAttribute(void* data, int attribute, void* pointer) {
  HEDDLE_FAKE_HIP_BEGIN;
  constexpr int kMemoryType = 2, kDeviceOrdinal = 9;
  if (attribute != kDeviceOrdinal && attribute != kMemoryType) return answer(kNotSupported);
  const auto* allocation = allocation_at(address_of(pointer));
  if (!allocation) return answer(kInvalidValue);
  const bool old = std::atoi(setting("FAKE_HIP_VERSION", "60000000").c_str()) < 60'000'000;
  *static_cast<int*>(data) = attribute == kDeviceOrdinal ? allocation->second.device : old ? 1 : 2;
  return kSuccess;
}

int fake_hip_allow_rewrites(void* pointer) {
  const std::scoped_lock lock(state().mutex);
  if (!state().allocations.contains(address_of(pointer))) return kInvalidValue;
  state().memory.set_rewritable(address_of(pointer), true);
  return kSuccess;
}
}
