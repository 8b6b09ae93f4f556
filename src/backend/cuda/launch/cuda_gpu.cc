#include "backend/cuda/launch/cuda_gpu.h"

#include <cstring>

#include "backend/backends.h"
#include "backend/cuda/driver/cuda_objects.h"
#include "backend/cuda/hopper/tensor_map.h"
#include "backend/cuda/jit/cuda_jit.h"
#include "backend/gpu/absent_gpu.h"

namespace heddle::cuda {
namespace {

class CudaProgram final : public gpu::Program {
 public:
  CudaProgram(int device, const jit::Source& source)
      : device_(device), cubin_(jit::build(source)), module_(device, cubin_->bytes, jit::compiler_number(*cubin_)) {}

  const heddle::jit::MachineCode& code() const override { return *cubin_; }
  void* function(const char* name, int shared_bytes) const override { return module_.function(name, shared_bytes); }
  void enqueue(void* function, const gpu::Launch& launch, void* stream, void** parameters,
               const char* what) const override {
    const ContextScope scope(device_);
    const Launch own = {.ctas = launch.ctas,
                        .height = launch.height,
                        .threads = launch.threads,
                        .shared_bytes = launch.shared_bytes,
                        .overlaps = launch.overlaps};
    launch_kernel(static_cast<CUfunction>(function), own, stream, parameters, what);
  }

 private:
  int device_;
  std::shared_ptr<const jit::Cubin> cubin_;
  Module module_;
};

class CudaGpu final : public gpu::Gpu {
 public:
  const backend::DeviceInterface& devices() const override { return backend::cuda_device(); }
  const gpu::Dialect& dialect() const override { return gpu::cuda_dialect(); }
  std::string architecture_of(int device) const override { return cuda::architecture_of(device); }
  std::unique_ptr<gpu::Program> load(int device, const heddle::jit::Source& source) const override {
    return std::make_unique<CudaProgram>(device, source);
  }
  void describe_rows(int device, const ConstTensorView& tensor, int box_rows, std::int64_t longest,
                     void* map) const override {
    const ContextScope scope(device);
    const CUtensorMap described = tensor_map_before_ends(tensor, tensor.data, box_rows, longest);
    std::memcpy(map, &described, sizeof described);
  }
  void wait(int device, const char* what) const override {
    const ContextScope scope(device);
    check(driver().StreamSynchronize(nullptr), what);
  }
  std::string key_of(const heddle::jit::Source& source) const override { return jit::key_of(source); }
  std::string cache_notes() const override { return jit::cache_notes(); }
};

}  // namespace

const gpu::Gpu& cuda_gpu() {
  static const CudaGpu gpu;
  const gpu::Gpu* const absent = gpu::absent_gpu(DeviceKind::cuda);
  return absent != nullptr ? *absent : gpu;
}

}  // namespace heddle::cuda
