#include "context/context_checks.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <utility>
#include <vector>

#include "backend/backends.h"
#include "context/head_groups.h"
#include "context/positions.h"
#include "expr/mod_arguments.h"

namespace heddle::context {
namespace {

using mods::refuse;

std::string text_of(const Device& device) {
  if (device.kind == DeviceKind::cpu) return "the CPU";
  return fmt::format("{}:{}", device.kind == DeviceKind::cuda ? "cuda" : "rocm", device.index);
}

}  // namespace

void refuse_options(const AttentionOptions& options, const Device& device) {
  const auto given = [](std::string_view name) {
    refuse(fmt::format("{} is given; ContextAttention takes whole sequences of one partition, without it", name));
  };
#define HEDDLE_LENGTHS_OPTION(name, group, help) \
  if (options.name) given(#name);
#define HEDDLE_COUNT_OPTION(name) \
  if (options.name) given(#name);
#include "heddle/options.def"
  if (options.page_table) given("page_table");
  if (options.q_rest) given("q_rest");
  if (options.k_rest) given("k_rest");
  if (options.block_mask) given("block_mask");
  if (!options.mask_mod.empty()) given("mask_mod");
  if (options.backend != BackendChoice::automatic && options.backend != backend::backend_of(device.kind)) {
    refuse(fmt::format("backend is {}, and the communicator carries rows of {}; {} and automatic are accepted",
                       name(options.backend), text_of(device), name(backend::backend_of(device.kind))));
  }
  if (options.bindings.params.contains(kFirstHead)) {
    refuse(fmt::format("a param is called '{}', which ContextAttention adds; other names are accepted", kFirstHead));
  }
  for (const char* name : {kQueries, kKeys}) {
    if (options.bindings.captures.contains(name)) {
      refuse(fmt::format("a capture is called '{}', which ContextAttention adds; other names are accepted", name));
    }
  }
}

std::string shape_text(const ConstTensorView& view) {
  if (view.rank() != 4) return "?";
  return fmt::format("{}[{}, {}, {}]", name(view.dtype), view.shape[0], view.shape[1], view.shape[3]);
}

void check_rows(std::string_view name, const ConstTensorView& view, std::int64_t rows, const Device& device) {
  if (view.device != device) {
    refuse(fmt::format("{} is on {}, and the communicator carries rows of {}; tensors there are accepted", name,
                       text_of(view.device), text_of(device)));
  }
  if (view.rank() != 4 || view.shape[2] != rows) {
    refuse(fmt::format("{} has shape {}; {} rows, which this rank holds, are accepted", name, to_string(view.shape),
                       rows));
  }
}

void check_added(std::string_view name, const std::optional<TensorView>& gradient) {
  if (!gradient) {
    refuse(fmt::format("added.{} is true, and {} is absent; a tensor that holds what is added to is accepted",
                       name.substr(1), name));
  }
  // From the shortest stride on, each axis steps over all elements of those before.
  std::vector<std::pair<std::int64_t, std::int64_t>> axes;  // stride, extent
  for (int axis = 0; axis < gradient->rank(); ++axis) {
    const std::int64_t extent = gradient->shape[axis];
    if (extent == 0) return;
    if (extent > 1) axes.emplace_back(std::abs(gradient->strides[axis]), extent);
  }
  std::ranges::sort(axes);
  std::int64_t span = 1;
  for (const auto& [stride, extent] : axes) {
    if (stride < span) {
      refuse(fmt::format("{} is added to, and has shape {} with strides {}; elements that share no memory are accepted",
                         name, to_string(gradient->shape), to_string(gradient->strides)));
    }
    span += stride * (extent - 1);
  }
}

void check_gradient(std::string_view name, const ConstTensorView& gradient, const ConstTensorView& of) {
  check_rows(name, gradient, of.shape[2], of.device);
  if (gradient.shape == of.shape && is_floating(gradient.dtype) && gradient.strides[3] == 1) return;
  refuse(fmt::format("{} is {} {} with a last stride of {}; a floating dtype, {} and 1 are accepted", name,
                     heddle::name(gradient.dtype), to_string(gradient.shape), gradient.strides[3],
                     to_string(of.shape)));
}

}  // namespace heddle::context
