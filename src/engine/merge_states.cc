// merge_states: its checks, and its dispatch to a device.
#include <fmt/format.h>

#include <string>
#include <vector>

#include "backend/device.h"
#include "engine/pointers.h"
#include "heddle/attention.h"
#include "problem/one_device.h"
#include "problem/overlap.h"
#include "problem/refuse.h"

namespace heddle {
namespace {

using problem::refuse;

/// With what messages call it.
struct Part {
  backend::MergePart views;
  std::string o_name, lse_name;
};

void check_location(const std::string& name, const ConstTensorView& view, const Device& device) {
  if (view.device == device) return;
  refuse("o is on {} and {} on {}; one device for all is accepted", problem::name(device), name,
         problem::name(view.device));
}

void check_o(const std::string& name, const ConstTensorView& o, const TensorView& output) {
  problem::check_view(name, o);
  check_location(name, o, output.device);
  if (o.rank() != 4) refuse("{} has shape {}; 4 axes [B, Hq, Sq, Dv] are accepted", name, to_string(o.shape));
  if (!is_floating(o.dtype)) {
    refuse("{} is {}; f64, f32, f16, bf16, e4m3 and e5m2 are accepted", name, heddle::name(o.dtype));
  }
  if (!(o.shape == output.shape)) {
    refuse("{} has shape {}; o's {} is accepted", name, to_string(o.shape), to_string(output.shape));
  }
  if (o.count() > 0 && o.shape[3] > 1 && o.strides[3] != 1) {
    refuse("{} has strides {}; a last stride of 1 is accepted", name, to_string(o.strides));
  }
  problem::check_memory(name, o);
}

void check_lse(const std::string& name, const ConstTensorView& lse, const TensorView& output) {
  problem::check_view(name, lse);
  check_location(name, lse, output.device);
  if (lse.dtype != DType::f32 && lse.dtype != DType::f64) {
    refuse("{} is {}; f32 and f64 are accepted", name, heddle::name(lse.dtype));
  }
  const Dims expected = {output.shape[0], output.shape[1], output.shape[2]};
  if (!(lse.shape == expected)) {
    refuse("{} has shape {}; {} is accepted", name, to_string(lse.shape), to_string(expected));
  }
  problem::check_memory(name, lse);
}

// Every element in the same place: row by row, reading all parts before writing is then safe.
bool same_elements(const ConstTensorView& x, const ConstTensorView& y) {
  if (x.data != y.data || x.dtype != y.dtype || !(x.shape == y.shape)) return false;
  for (int axis = 0; axis < x.rank(); ++axis) {
    if (x.shape[axis] > 1 && x.strides[axis] != y.strides[axis]) return false;
  }
  return true;
}

// o may be one of the parts' o, lse one of their lse.
void check_output(const std::string& name, const ConstTensorView& output, const std::vector<Part>& parts, bool is_o) {
  if (problem::overlaps_itself(output)) {
    refuse("{} has shape {} and strides {}, so that elements share memory; one place an element is accepted", name,
           to_string(output.shape), to_string(output.strides));
  }
  const auto check = [&](const std::string& input_name, const ConstTensorView& input, bool may_be_same) {
    if (!problem::overlaps(output, input) || (may_be_same && same_elements(output, input))) return;
    refuse("{} overlaps {} in memory; none of its bytes, or all of it in place, is accepted", name, input_name);
  };
  for (const Part& part : parts) {
    check(part.o_name, part.views.o, is_o);
    check(part.lse_name, part.views.lse, !is_o);
  }
}

std::vector<Part> check_parts(std::span<const ConstTensorView> o_parts, std::span<const ConstTensorView> lse_parts,
                              const TensorView& o, const std::optional<TensorView>& lse) {
  if (o_parts.empty()) refuse("o_parts is empty; at least one part is accepted");
  if (o_parts.size() != lse_parts.size()) {
    refuse("o_parts has {} parts and lse_parts {}; as many are accepted", o_parts.size(), lse_parts.size());
  }
  check_o("o", o, o);
  if (lse) check_lse("lse", *lse, o);
  std::vector<Part> parts;
  for (std::size_t i = 0; i < o_parts.size(); ++i) {
    Part part{{o_parts[i], lse_parts[i]}, fmt::format("o_parts[{}]", i), fmt::format("lse_parts[{}]", i)};
    check_o(part.o_name, part.views.o, o);
    check_lse(part.lse_name, part.views.lse, o);
    parts.push_back(std::move(part));
  }
  check_output("o", o, parts, true);
  if (lse) {
    check_output("lse", *lse, parts, false);
    if (problem::overlaps(o, *lse)) refuse("o overlaps lse in memory; outputs that share no byte are accepted");
  }
  return parts;
}

/// On a GPU: is the memory where the views say?
void check_pointers(const std::vector<Part>& parts, const TensorView& o, const std::optional<TensorView>& lse) {
  const Device& device = o.device;
  for (const Part& part : parts) {
    engine::check_pointer(part.o_name, part.views.o, device);
    engine::check_pointer(part.lse_name, part.views.lse, device);
  }
  engine::check_pointer("o", o, device);
  if (lse) engine::check_pointer("lse", *lse, device);
}

}  // namespace

void merge_states(std::span<const ConstTensorView> o_parts, std::span<const ConstTensorView> lse_parts,
                  const TensorView& o, const std::optional<TensorView>& lse, void* stream) {
  const std::vector<Part> named = check_parts(o_parts, lse_parts, o, lse);
  std::vector<backend::MergePart> parts;
  parts.reserve(named.size());
  for (const Part& part : named) parts.push_back(part.views);
  const backend::MergeArguments arguments = {.parts = parts, .o = o, .lse = lse, .stream = stream};
  const backend::DeviceInterface& kind = engine::device_kind_of("o", o.device);
  if (o.device.kind != DeviceKind::cpu) check_pointers(named, o, lse);
  kind.merge(arguments);
}

}  // namespace heddle
