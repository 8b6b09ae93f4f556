#include "engine/pointers.h"

#include <fmt/format.h>

#include <string>
#include <string_view>

#include "backend/cuda/driver/device.h"
#include "heddle/error.h"
#include "problem/sequences.h"

namespace heddle::engine {
namespace {

std::string memory_of(int device) { return device < 0 ? "host memory" : fmt::format("the memory of cuda:{}", device); }

}  // namespace

void check_pointer(std::string_view name, const ConstTensorView& view, int device, bool capture) {
  if (view.data == nullptr) return;  // it has no elements: validation saw to that
  const int found = cuda::place_of(view.data).device;
  if (found == device) return;
  throw Error(
      ErrorCode::invalid_argument,
      fmt::format("{} is on cuda:{}, but its data is in {}; memory of cuda:{} is accepted",
                  capture ? fmt::format("capture '{}'", name) : std::string(name), device, memory_of(found), device));
}

void check_pointers(const problem::AttentionProblem& problem, const AttentionTensors& tensors,
                    const AttentionOptions& options, const Bindings& bindings) {
  const int device = problem.device.index;
  check_pointer("q", tensors.q, device);
  check_pointer("k", tensors.k, device);
  check_pointer("v", tensors.v, device);
  check_pointer("o", tensors.o, device);
  if (tensors.lse) check_pointer("lse", *tensors.lse, device);
  if (options.page_table) check_pointer("page_table", *options.page_table, device);
  if (options.sinks) check_pointer("sinks", *options.sinks, device);
  for (const auto& [name, member] : problem::kLengthViews) {
    if (problem.device_lengths && options.*member) check_pointer(name, *(options.*member), device);
  }
  for (const std::string& name : problem.captures) {
    const ConstTensorView& view = bindings.captures.find(name)->second;
    if (view.device.kind == DeviceKind::cuda) check_pointer(name, view, device, true);
  }
}

void check_workspace(const void* workspace, int device) {
  const int found = cuda::place_of(workspace).device;
  if (found == device) return;
  throw Error(ErrorCode::invalid_argument,
              fmt::format("workspace is in {}; memory of cuda:{} is accepted", memory_of(found), device));
}

}  // namespace heddle::engine
