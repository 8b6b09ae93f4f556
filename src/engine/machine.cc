#include "engine/machine.h"

#include "backend/device.h"

namespace heddle::engine {

const device::Machine& machine() {
  static const device::Machine once = [] {
    device::Machine machine;
    for (const backend::DeviceInterface* kind : backend::device_kinds()) kind->tell(machine);
    return machine;
  }();
  return once;
}

const device::Machine& cpu_machine() {
  static const device::Machine once = [] {
    device::Machine machine;
    machine.miss_gpus("no GPU was looked for: the tensors are on the CPU");
    backend::find_device_kind(DeviceKind::cpu)->tell(machine);
    return machine;
  }();
  return once;
}

const device::Machine& machine_for(const Device& device, const AttentionOptions& options) {
  const bool on_cpu = options.backend == BackendChoice::automatic || options.backend == BackendChoice::cpu ||
                      options.backend == BackendChoice::reference;
  return device.kind == DeviceKind::cpu && on_cpu ? cpu_machine() : machine();
}

}  // namespace heddle::engine
