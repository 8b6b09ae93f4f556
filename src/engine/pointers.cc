#include "engine/pointers.h"

#include <fmt/format.h>

#include <string>
#include <string_view>

#include "backend/device.h"
#include "heddle/error.h"
#include "problem/option_views.h"

namespace heddle::engine {
namespace {

std::string memory_of(DeviceKind kind, int index) {
  return index < 0 ? "host memory" : fmt::format("the memory of {}", problem::name(Device{kind, index}));
}

}  // namespace

const backend::DeviceInterface& device_kind_of(std::string_view name, const Device& device) {
  if (const backend::DeviceInterface* kind = backend::find_device_kind(device.kind)) return *kind;
  std::string known;
  for (const backend::DeviceInterface* one : backend::device_kinds()) {
    known += fmt::format("{}{}", known.empty() ? "" : ", ", problem::name({one->kind(), 0}));
  }
  throw Error(ErrorCode::invalid_argument,
              fmt::format("{} is on {}; devices like these are accepted: {}", name, problem::name(device), known));
}

void check_pointer(std::string_view name, const ConstTensorView& view, const Device& device, std::string_view of) {
  if (view.data == nullptr) return;  // it has no elements: validation saw to that
  const int found = backend::find_device_kind(device.kind)->index_of(view.data);
  if (found == device.index) return;
  const std::string given = problem::name(device);
  throw Error(ErrorCode::invalid_argument,
              fmt::format("{} is on {}, but its data is in {}; memory of {} is accepted",
                          of.empty() ? std::string(name) : fmt::format("{} '{}'", of, name), given,
                          memory_of(device.kind, found), given));
}

void check_pointers(const problem::AttentionProblem& problem, const AttentionTensors& tensors,
                    const AttentionOptions& options, const Bindings& bindings) {
  const Device& device = problem.device;
  check_pointer("q", tensors.q, device);
  check_pointer("k", tensors.k, device);
  check_pointer("v", tensors.v, device);
  check_pointer("o", tensors.o, device);
  if (tensors.lse) check_pointer("lse", *tensors.lse, device);
  if (tensors.max_scores) check_pointer("max_scores", *tensors.max_scores, device);
  if (tensors.lse_rest) check_pointer("lse_rest", *tensors.lse_rest, device);
  for (const auto& [name, member] : problem::kTensorOptions) {
    if (options.*member) check_pointer(name, *(options.*member), device);
  }
  for (const auto& [name, member] : problem::kLengthViews) {
    if (problem.device_lengths && options.*member) check_pointer(name, *(options.*member), device);
  }
  for (const std::string& name : problem.captures) {
    const ConstTensorView& view = bindings.captures.find(name)->second;
    if (view.device.kind != DeviceKind::cpu) check_pointer(name, view, device, "capture");
  }
}

void check_pointers(const problem::AttentionProblem& problem, const BackwardTensors& tensors,
                    const AttentionOptions& options, const Bindings& bindings) {
  const Device& device = problem.device;
  check_pointers(problem, problem::forward_tensors(tensors), options, bindings);
  check_pointer("d_o", tensors.d_o, device);
  if (tensors.d_lse) check_pointer("d_lse", *tensors.d_lse, device);
  if (tensors.dq) check_pointer("dq", *tensors.dq, device);
  if (tensors.dk) check_pointer("dk", *tensors.dk, device);
  if (tensors.dv) check_pointer("dv", *tensors.dv, device);
  if (tensors.d_sinks) check_pointer("d_sinks", *tensors.d_sinks, device);
  for (const NamedViews* gradients : {&tensors.d_captures, &tensors.d_params}) {
    for (const auto& [name, view] : *gradients) check_pointer(name, view, device, "the gradient of");
  }
}

void check_workspace(const void* workspace, const Device& device) {
  const int found = backend::find_device_kind(device.kind)->index_of(workspace);
  if (found == device.index) return;
  throw Error(ErrorCode::invalid_argument, fmt::format("workspace is in {}; memory of {} is accepted",
                                                       memory_of(device.kind, found), problem::name(device)));
}

}  // namespace heddle::engine
