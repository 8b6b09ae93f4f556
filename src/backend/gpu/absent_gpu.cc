#include "backend/gpu/absent_gpu.h"

#include <fmt/format.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <new>
#include <utility>

#include "backend/gpu/mask_rows_launch.h"
#include "heddle/error.h"

namespace heddle::gpu {
namespace {

[[noreturn]] void refuse(const char* what) {
  throw Error(ErrorCode::internal, fmt::format("{} of a GPU that is not here", what));
}

class AbsentDevices final : public backend::DeviceInterface {
 public:
  explicit AbsentDevices(DeviceKind kind) : kind_(kind) {}

  DeviceKind kind() const override { return kind_; }
  int count() const override { return 1; }
  std::string missing() const override { return "it is not here: kernels are compiled for it"; }
  void tell(device::Machine&) const override { refuse("the abilities"); }
  std::vector<DeviceInfo> infos() const override { return {}; }

  std::shared_ptr<void> allocate(int, std::size_t bytes) const override {
    if (bytes == 0) return nullptr;
    void* const memory = std::calloc(bytes, 1);  // pages that nobody writes take no memory
    if (memory == nullptr) throw std::bad_alloc();
    return {memory, std::free};
  }
  void copy_and_wait(int, void* to, const void* from, std::size_t bytes) const override {
    if (bytes > 0) std::memcpy(to, from, bytes);
  }
  int index_of(const void*) const override { return -1; }
  bool is_capturing(int, void*) const override { return false; }

  void merge(const backend::MergeArguments&) const override { refuse("merged states"); }
  void append(const AppendTensors&, const AppendOptions&) const override { refuse("appended rows"); }
  void move_rows(const backend::MoveArguments&) const override { refuse("moved rows"); }
  backend::BuiltMask build_mask(int, const Expr&, const MaskShape&, BlockSize, const Bindings&, DType, bool,
                                std::shared_ptr<backend::DeviceMaskRows>&) const override {
    refuse("a block mask");
  }

 private:
  DeviceKind kind_;
};

class AbsentProgram final : public Program {
 public:
  explicit AbsentProgram(std::shared_ptr<const jit::MachineCode> code) : code_(std::move(code)) {}

  const jit::MachineCode& code() const override { return *code_; }
  void* function(const char*, int) const override { return const_cast<AbsentProgram*>(this); }  // any but null
  void enqueue(void*, const Launch&, void*, void**, const char*) const override {}

 private:
  std::shared_ptr<const jit::MachineCode> code_;
};

class AbsentGpu final : public Gpu {
 public:
  AbsentGpu(DeviceKind kind, const Dialect& dialect, std::string architecture, BuildKernel build)
      : devices_(kind), dialect_(dialect), architecture_(std::move(architecture)), build_(build) {}

  const backend::DeviceInterface& devices() const override { return devices_; }
  const Dialect& dialect() const override { return dialect_; }
  std::string architecture_of(int) const override { return architecture_; }
  std::unique_ptr<Program> load(int, const jit::Source& source) const override {
    return std::make_unique<AbsentProgram>(build_(source));
  }
  void describe_rows(int, const ConstTensorView&, int, std::int64_t, void*) const override {}
  void wait(int, const char*) const override {}
  bool keeps_kernels() const override { return false; }
  std::string key_of(const jit::Source&) const override { return {}; }
  std::string cache_notes() const override { return {}; }

 private:
  AbsentDevices devices_;
  const Dialect& dialect_;
  std::string architecture_;
  BuildKernel build_;
};

/// Prepared kernels refer to their GPU, so one is kept for each architecture.
const Gpu& kept_gpu(DeviceKind kind, const Dialect& dialect, const std::string& architecture, BuildKernel build) {
  static auto& mutex = *new std::mutex;
  static auto& kept = *new std::map<std::string, std::unique_ptr<const Gpu>>;
  const std::scoped_lock lock(mutex);
  std::unique_ptr<const Gpu>& gpu = kept[architecture];
  if (gpu == nullptr) gpu = std::make_unique<const AbsentGpu>(kind, dialect, architecture, build);
  return *gpu;
}

thread_local const Gpu* current_gpu = nullptr;

}  // namespace

AbsentGpuScope::AbsentGpuScope(DeviceKind kind, const Dialect& dialect, const std::string& architecture,
                               BuildKernel build)
    : before_(std::exchange(current_gpu, &kept_gpu(kind, dialect, architecture, build))) {}

AbsentGpuScope::~AbsentGpuScope() { current_gpu = before_; }

const Gpu* absent_gpu(DeviceKind kind) {
  return current_gpu != nullptr && current_gpu->devices().kind() == kind ? current_gpu : nullptr;
}

}  // namespace heddle::gpu
