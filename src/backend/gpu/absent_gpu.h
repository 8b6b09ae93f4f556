// A GPU that is not here: kernels are compiled for it, and neither loaded nor launched. So an archive gets every kernel
// that a plan would run there.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "backend/gpu/gpu.h"

namespace heddle::gpu {

using BuildKernel = std::shared_ptr<const jit::MachineCode> (*)(const jit::Source&);

/// While it lives, this thread's kernels of `kind` are for an absent GPU of `architecture`, device 0, whose memory is
/// the host's. The kernels' compiler is `build`.
class AbsentGpuScope final : public backend::AbsentDevice {
 public:
  AbsentGpuScope(DeviceKind kind, const Dialect& dialect, const std::string& architecture, BuildKernel build);
  ~AbsentGpuScope() override;

 private:
  const Gpu* before_;
};

/// The absent GPU of that kind that this thread works for; null: none.
const Gpu* absent_gpu(DeviceKind kind);

}  // namespace heddle::gpu
