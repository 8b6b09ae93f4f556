// ROCm devices: their memory, and what is computed there beside attention. It has the lines of
// cuda/launch/cuda_device.cc, because a class over both drivers would need the same list of calls again as its
// parameter.
#include <fmt/format.h>

#include "backend/amd/driver/hip_objects.h"
#include "backend/amd/jit/amd_jit.h"
#include "backend/amd/launch/amd_gpu.h"
#include "backend/amd/launch/hip_side_stream.h"
#include "backend/backends.h"
#include "backend/gpu/absent_gpu.h"
#include "backend/gpu/append_kv_launch.h"
#include "backend/gpu/merge_states_launch.h"
#include "backend/gpu/move_rows_launch.h"

namespace heddle::backend {
namespace {

/// Kernels are compiled at run time: without a compiler a GPU is of no use.
std::string compiler_text() {
  const std::string missing = amd::compiler_missing();
  return missing.empty() ? "hipRTC " + amd::compiler_version() : fmt::format("no kernel compiler ({})", missing);
}

DeviceInfo info_of(const device::AmdCaps& caps) {
  return {
      .kind = "rocm",
      .name = caps.name,
      .detail = fmt::format("{}, {} compute units, {} LDS a workgroup, L2 {}, HIP {}, {}", caps.architecture,
                            caps.compute_units, device::size_text(caps.shared_memory_bytes),
                            device::size_text(caps.l2_bytes), amd::version_text(caps.runtime_version), compiler_text()),
      .memory_bytes = caps.memory_bytes};
}

/// CudaDevice in HIP's words: the calls of the two drivers have nothing in common but their order.
class AmdDevice final : public DeviceInterface {
 public:
  DeviceKind kind() const override { return DeviceKind::rocm; }
  int count() const override { return static_cast<int>(amd::devices().size()); }
  std::string missing() const override { return amd::hip_missing(); }
  void tell(device::Machine& machine) const override {
    machine.amd = amd::devices();
    machine.amd_missing = missing();
  }

  std::vector<DeviceInfo> infos() const override {
    std::vector<DeviceInfo> infos;
    for (const device::AmdCaps& caps : amd::devices()) infos.push_back(info_of(caps));
    return infos;
  }

  std::shared_ptr<void> allocate(int index, std::size_t bytes) const override {
    if (bytes == 0) return nullptr;
    const auto memory = std::make_shared<amd::DeviceMemory>(index, bytes);
    return {memory, memory->data()};
  }
  void copy_and_wait(int index, void* to, const void* from, std::size_t bytes) const override {
    amd::copy_and_wait(index, to, from, bytes);
  }
  int index_of(const void* pointer) const override { return amd::device_of(pointer); }
  bool is_capturing(int index, void* stream) const override { return amd::is_capturing(index, stream); }

  void merge(const MergeArguments& arguments) const override { gpu::merge_states(amd::amd_gpu(), arguments); }
  void append(const AppendTensors& tensors, const AppendOptions& options) const override {
    gpu::append_kv(amd::amd_gpu(), tensors, options);
  }
  void move_rows(const MoveArguments& arguments) const override { gpu::move_rows(amd::amd_gpu(), arguments); }
  std::unique_ptr<SideStream> make_side_stream(int index, int marks) const override {
    return amd::make_side_stream(index, marks);
  }
  BuiltMask build_mask(int, const Expr&, const MaskShape&, BlockSize, const Bindings&, DType, bool,
                       std::shared_ptr<DeviceMaskRows>&) const override {
    return {nullptr, "kernels that find a block mask are there for CUDA alone"};
  }
  std::unique_ptr<AbsentDevice> stand_in(const std::string& architecture) const override {
    const auto build = [](const jit::Source& source) { return amd::builder().build(source); };
    return std::make_unique<gpu::AbsentGpuScope>(DeviceKind::rocm, gpu::hip_dialect(), architecture, build);
  }
};

}  // namespace

const DeviceInterface& amd_device() {
  static const AmdDevice device;
  return device;
}

}  // namespace heddle::backend
