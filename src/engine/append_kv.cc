// append_kv: its checks, and its dispatch to a device.
#include <optional>
#include <string_view>

#include "backend/device.h"
#include "engine/pointers.h"
#include "heddle/kv_cache.h"
#include "problem/append_checks.h"

namespace heddle {
namespace {

/// On a GPU: is the memory where the views say?
void check_pointers(const AppendTensors& tensors, const AppendOptions& options) {
  const Device& device = tensors.k.device;
  const auto check = [&](std::string_view name, const std::optional<ConstTensorView>& view) {
    if (view) engine::check_pointer(name, *view, device);
  };
  check("k", tensors.k);
  check("v", tensors.v);
  check("k_cache", tensors.k_cache);
  if (tensors.v_cache) check("v_cache", *tensors.v_cache);
  check("q", tensors.q);
  if (tensors.q_out) check("q_out", *tensors.q_out);
  check("kv_lengths", options.kv_lengths);
  check("cu_seqlens", options.cu_seqlens);
  check("page_table", options.page_table);
  check("page_starts", options.page_starts);
  check("k_descale", options.k_descale);
  check("v_descale", options.v_descale);
  if (!options.rotary) return;
  check("rotary_cos", options.rotary->cos);
  check("rotary_sin", options.rotary->sin);
  check("rotary_positions", options.rotary->positions);
}

}  // namespace

void append_kv(const AppendTensors& tensors, const AppendOptions& options) {
  problem::check_append(tensors, options);
  const Device& device = tensors.k.device;
  const backend::DeviceInterface& kind = engine::device_kind_of("k", device);
  if (device.kind == DeviceKind::cpu) {
    problem::check_append_rows(tensors, options);
  } else {
    check_pointers(tensors, options);
  }
  kind.append(tensors, options);
}

}  // namespace heddle
