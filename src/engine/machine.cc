#include "engine/machine.h"

#include "backend/cpu/caps.h"
#include "backend/cuda/driver/device.h"

namespace heddle::engine {

const device::Machine& machine() {
  static const device::Machine once{
      .cpu = cpu::cpu_caps(), .cuda = cuda::devices(), .cuda_missing = cuda::driver_missing()};
  return once;
}

const device::Machine& cpu_machine() {
  static const device::Machine once{
      .cpu = cpu::cpu_caps(), .cuda = {}, .cuda_missing = "no GPU was looked for: the tensors are on the CPU"};
  return once;
}

}  // namespace heddle::engine
