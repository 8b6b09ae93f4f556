#include "backend/amd/launch/amd_gpu.h"

#include "backend/amd/driver/hip_objects.h"
#include "backend/amd/jit/amd_jit.h"
#include "backend/backends.h"
#include "backend/gpu/absent_gpu.h"
#include "heddle/error.h"

namespace heddle::amd {
namespace {

class AmdProgram final : public gpu::Program {
 public:
  AmdProgram(int device, const jit::Source& source)
      : device_(device), code_(builder().build(source)), module_(device, code_->bytes) {}

  const jit::MachineCode& code() const override { return *code_; }
  void* function(const char* name, int) const override { return module_.function(name); }
  void enqueue(void* function, const gpu::Launch& launch, void* stream, void** parameters,
               const char* what) const override {
    const Launch own = {.workgroups = launch.ctas, .height = launch.height, .threads = launch.threads};
    launch_kernel(device_, static_cast<HipFunction>(function), own, stream, parameters, what);
  }

 private:
  int device_;
  std::shared_ptr<const jit::MachineCode> code_;
  Module module_;
};

class AmdGpu final : public gpu::Gpu {
 public:
  const backend::DeviceInterface& devices() const override { return backend::amd_device(); }
  const gpu::Dialect& dialect() const override { return gpu::hip_dialect(); }
  std::string architecture_of(int device) const override {
    return amd::devices().at(static_cast<std::size_t>(device)).architecture;
  }
  std::unique_ptr<gpu::Program> load(int device, const jit::Source& source) const override {
    return std::make_unique<AmdProgram>(device, source);
  }
  void describe_rows(int, const ConstTensorView&, int, std::int64_t, void*) const override {
    throw Error(ErrorCode::internal,
                "kernels for AMD's GPUs copy rows themselves; no plan describes them to a copy engine");
  }
  void wait(int device, const char* what) const override { amd::wait(device, what); }
  std::string key_of(const jit::Source& source) const override { return builder().key_of(source); }
  std::string cache_notes() const override { return builder().cache_notes(); }
};

}  // namespace

const gpu::Gpu& amd_gpu() {
  static const AmdGpu gpu;
  const gpu::Gpu* const absent = gpu::absent_gpu(DeviceKind::rocm);
  return absent != nullptr ? *absent : gpu;
}

}  // namespace heddle::amd
