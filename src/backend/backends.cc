#include "backend/backends.h"

#include <algorithm>
#include <array>

namespace heddle::backend {

std::span<const DeviceInterface* const> device_kinds() {
  static const std::array all = {&cpu_device(), &cuda_device(), &amd_device()};
  return all;
}

const DeviceInterface* find_device_kind(DeviceKind kind) {
  const auto found =
      std::ranges::find(device_kinds(), kind, [](const DeviceInterface* device) { return device->kind(); });
  return found == device_kinds().end() ? nullptr : *found;
}

BackendChoice backend_of(DeviceKind kind) {
  switch (kind) {
    case DeviceKind::cpu:
      return BackendChoice::cpu;
    case DeviceKind::cuda:
      return BackendChoice::cuda;
    case DeviceKind::rocm:
      return BackendChoice::amd;
  }
  return BackendChoice::automatic;
}

}  // namespace heddle::backend
