#include "backend/gpu/kv_start_values.h"

#include <cstdint>
#include <vector>

namespace heddle::gpu {

KvStartValues::KvStartValues(const backend::DeviceInterface& devices, int device, const plan::KvStart& start,
                             std::span<const Sequence> sequences, const std::optional<ConstTensorView>& there) {
  using Form = plan::KvStart::Form;
  if (start.form == Form::zero) return;
  if (start.form == Form::param) {
    bindings_.params[plan::kKvStartName] = static_cast<std::int32_t>(sequences.front().kv_start);
    return;
  }
  ConstTensorView& view = bindings_.captures[plan::kKvStartName];
  if (there && there->device.kind != DeviceKind::cpu) {
    view = *there;
    return;
  }
  std::vector<std::int32_t> starts;
  for (const Sequence& sequence : sequences) starts.push_back(static_cast<std::int32_t>(sequence.kv_start));
  memory_ = Memory(devices, device, starts.size() * sizeof(std::int32_t));
  devices.copy_and_wait(device, memory_.data(), starts.data(), memory_.bytes());
  view = ConstTensorView(memory_.data(), DType::i32, Dims{std::ssize(starts)}, Dims{1}, {devices.kind(), device});
}

}  // namespace heddle::gpu
