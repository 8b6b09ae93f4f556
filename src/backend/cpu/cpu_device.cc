// The CPU as a device: memory of the host.
#include <fmt/format.h>

#include <cstdlib>
#include <cstring>

#include "backend/backends.h"
#include "backend/cpu/cpu_append_kv.h"
#include "backend/cpu/cpu_caps.h"
#include "backend/cpu/cpu_merge_states.h"
#include "backend/cpu/cpu_move_rows.h"
#include "heddle/error.h"

namespace heddle::backend {
namespace {

class CpuDevice final : public DeviceInterface {
 public:
  DeviceKind kind() const override { return DeviceKind::cpu; }
  int count() const override { return 1; }
  std::string missing() const override { return {}; }
  void tell(device::Machine& machine) const override { machine.cpu = cpu::cpu_caps(); }

  std::vector<DeviceInfo> infos() const override {
    const device::Caps& caps = cpu::cpu_caps();
    return {{.kind = "cpu",
             .name = caps.name,
             .detail =
                 fmt::format("{}, {} floats a vector, {} cores, L1 {}, L2 {}", caps.simd_target, caps.vector_bytes / 4,
                             caps.cores, device::size_text(caps.l1_bytes), device::size_text(caps.l2_bytes)),
             .memory_bytes = caps.memory_bytes}};
  }

  std::shared_ptr<void> allocate(int, std::size_t bytes) const override {
    constexpr std::size_t kAlignment = 64;
    if (bytes == 0) return nullptr;
    void* memory = std::aligned_alloc(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
    if (memory == nullptr) throw Error(ErrorCode::out_of_memory, fmt::format("cannot allocate {} bytes", bytes));
    return {memory, std::free};
  }
  void copy_and_wait(int, void* to, const void* from, std::size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }
  int index_of(const void*) const override { return -1; }
  bool is_capturing(int, void*) const override { return false; }
  void merge(const MergeArguments& arguments) const override { cpu::merge_states(arguments); }
  void append(const AppendTensors& tensors, const AppendOptions& options) const override {
    cpu::append_kv(tensors, options);
  }
  void move_rows(const MoveArguments& arguments) const override { cpu::move_rows(arguments); }
  BuiltMask build_mask(int, const Expr&, const MaskShape&, BlockSize, const Bindings&, DType, bool,
                       std::shared_ptr<DeviceMaskRows>&) const override {
    return {.mask = nullptr, .refused = "the CPU is the host"};
  }
};

}  // namespace

const DeviceInterface& cpu_device() {
  static const CpuDevice device;
  return device;
}

}  // namespace heddle::backend
