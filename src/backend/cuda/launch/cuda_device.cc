// CUDA devices: their memory, and what is computed there beside attention.
#include <fmt/format.h>

#include "backend/backends.h"
#include "backend/cuda/driver/cuda_objects.h"
#include "backend/cuda/jit/cuda_jit.h"
#include "backend/cuda/launch/cuda_gpu.h"
#include "backend/cuda/launch/cuda_side_stream.h"
#include "backend/gpu/absent_gpu.h"
#include "backend/gpu/append_kv_launch.h"
#include "backend/gpu/mask_rows_launch.h"
#include "backend/gpu/merge_states_launch.h"
#include "backend/gpu/move_rows_launch.h"

namespace heddle::backend {
namespace {

/// Kernels are compiled at run time: without a compiler a GPU is of no use.
std::string compiler_text() {
  const std::string missing = cuda::jit::compiler_missing();
  return missing.empty() ? "NVRTC " + cuda::jit::compiler_version() : fmt::format("no kernel compiler ({})", missing);
}

DeviceInfo info_of(const device::CudaCaps& caps) {
  return {.kind = "cuda",
          .name = caps.name,
          .detail =
              fmt::format("compute capability {}.{}, {} SMs, {} shared memory a block, L2 {}, driver of CUDA {}.{}, {}",
                          caps.major, caps.minor, caps.multiprocessors, device::size_text(caps.shared_memory_bytes),
                          device::size_text(caps.l2_bytes), caps.driver_version / 1000, caps.driver_version % 1000 / 10,
                          compiler_text()),
          .memory_bytes = caps.memory_bytes};
}

/// AmdDevice has the same calls in the same order, in the words of another driver.
class CudaDevice final : public DeviceInterface {
 public:
  DeviceKind kind() const override { return DeviceKind::cuda; }
  int count() const override { return static_cast<int>(cuda::devices().size()); }
  std::string missing() const override { return cuda::driver_missing(); }
  void tell(device::Machine& machine) const override {
    machine.cuda = cuda::devices();
    machine.cuda_missing = missing();
  }

  std::vector<DeviceInfo> infos() const override {
    std::vector<DeviceInfo> infos;
    for (const device::CudaCaps& caps : cuda::devices()) infos.push_back(info_of(caps));
    return infos;
  }

  std::shared_ptr<void> allocate(int index, std::size_t bytes) const override {
    if (bytes == 0) return nullptr;
    const auto memory = std::make_shared<cuda::DeviceMemory>(index, bytes);
    return {memory, memory->data()};
  }
  void copy_and_wait(int index, void* to, const void* from, std::size_t bytes) const override {
    cuda::copy_and_wait(index, to, from, bytes);
  }
  int index_of(const void* pointer) const override { return cuda::location_of(pointer).device; }
  bool is_capturing(int index, void* stream) const override {
    const cuda::ContextScope scope(index);
    auto status = cuda::CUstreamCaptureStatus::none;
    // An error: of the legacy stream while another one is captured. Launches on it say so themselves.
    const cuda::CUresult result = cuda::driver().StreamIsCapturing(static_cast<cuda::CUstream>(stream), &status);
    return result == cuda::CUDA_SUCCESS && status != cuda::CUstreamCaptureStatus::none;
  }

  void merge(const MergeArguments& arguments) const override { gpu::merge_states(cuda::cuda_gpu(), arguments); }
  void append(const AppendTensors& tensors, const AppendOptions& options) const override {
    gpu::append_kv(cuda::cuda_gpu(), tensors, options);
  }
  void move_rows(const MoveArguments& arguments) const override { gpu::move_rows(cuda::cuda_gpu(), arguments); }
  std::unique_ptr<SideStream> make_side_stream(int index, int marks) const override {
    return cuda::make_side_stream(index, marks);
  }
  BuiltMask build_mask(int index, const Expr& mask, const MaskShape& shape, BlockSize block, const Bindings& bindings,
                       DType reals, bool clamp_reads, std::shared_ptr<DeviceMaskRows>& rows) const override {
    return gpu::build_mask(cuda::cuda_gpu(), index, mask, shape, block, bindings, reals, clamp_reads, rows);
  }
  std::unique_ptr<AbsentDevice> stand_in(const std::string& architecture) const override {
    return std::make_unique<gpu::AbsentGpuScope>(DeviceKind::cuda, gpu::cuda_dialect(), architecture, cuda::jit::build);
  }
};

}  // namespace

const DeviceInterface& cuda_device() {
  static const CudaDevice device;
  return device;
}

}  // namespace heddle::backend
