#include "problem/one_device.h"

#include "problem/refuse.h"

namespace heddle::problem {

Device device_of(const AttentionTensors& tensors) {
  const Device device = tensors.q.device;
  const auto check = [&](std::string_view tensor, const ConstTensorView& view) {
    if (view.device == device) return;
    refuse("q is on {} and {} on {}; one device for all tensors is accepted", name(device), tensor, name(view.device));
  };
  check("k", tensors.k);
  check("v", tensors.v);
  check("o", tensors.o);
  if (tensors.lse) check("lse", *tensors.lse);
  if (tensors.max_scores) check("max_scores", *tensors.max_scores);
  if (tensors.lse_rest) check("lse_rest", *tensors.lse_rest);
  return device;
}

void check_on_cpu(std::string_view name, const ConstTensorView& view) {
  if (view.device.kind == DeviceKind::cpu) return;
  refuse("{} is on {}; the CPU is accepted, where it is read", name, problem::name(view.device));
}

void check_beside(std::string_view name, const ConstTensorView& view, const Device& device) {
  if (view.device == device) return;
  refuse("{} is on {}; {} is accepted, where q is", name, problem::name(view.device), problem::name(device));
}

}  // namespace heddle::problem
