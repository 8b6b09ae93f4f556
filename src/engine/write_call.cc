#include "engine/write_call.h"

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "heddle/error.h"
#include "problem/option_views.h"
#include "problem/problem.h"

namespace heddle::engine {
namespace {

using base::JsonObject;

constexpr std::int64_t kMostLengths = 1 << 16, kMostIndices = 4096;  // of a tensor, for its numbers to be written
constexpr std::uintptr_t kAlignment = 16;                            // that plans make use of

enum class Role : std::uint8_t { tensor, lengths, capture };

bool is_whole(DType dtype) { return !is_floating(dtype); }

std::vector<std::int64_t> values_of(const ConstTensorView& view) {
  const TensorView source(const_cast<void*>(view.data), view.dtype, view.shape, view.strides, view.device);
  const Tensor numbers = Tensor::adopt(source, nullptr).to(DType::f64);
  const auto* const first = static_cast<const double*>(numbers.data());
  std::vector<std::int64_t> values;
  for (std::int64_t i = 0; i < numbers.count(); ++i) values.push_back(static_cast<std::int64_t>(first[i]));
  return values;
}

std::vector<std::int64_t> numbers_of(const Dims& dims) { return {dims.begin(), dims.end()}; }

/// `home`: the device of q. Lengths of the host stay there whatever q's device is; the other tensors are where q is.
JsonObject tensor_json(const ConstTensorView& view, const Device& home, Role role = Role::tensor) {
  const bool on_host = view.device.kind == DeviceKind::cpu;
  JsonObject json;
  json.add("dtype", name(view.dtype)).add("shape", numbers_of(view.shape));
  if (!(view.strides == contiguous_strides(view.shape))) json.add("strides", numbers_of(view.strides));
  if (const auto offset = reinterpret_cast<std::uintptr_t>(view.data) % kAlignment; !on_host && offset != 0) {
    json.add("offset", offset);
  }
  if (on_host && (home.kind != DeviceKind::cpu || role == Role::lengths)) json.add("on", "host");
  const bool known = role != Role::tensor && on_host && view.data != nullptr && is_whole(view.dtype);
  const std::int64_t most = role == Role::lengths ? kMostLengths : kMostIndices;
  if (known && view.count() <= most) json.add("values", values_of(view));
  return json;
}

class CallWriter {
 public:
  CallWriter(JsonObject& json, const Device& home) : json_(json), home_(home) {}

  void add(const char* name, const ConstTensorView& view) { json_.add(name, tensor_json(view, home_)); }
  template <class View>
  void add(const char* name, const std::optional<View>& view) {
    if (view) add(name, ConstTensorView(*view));
  }
  void add(const char* name, const NamedViews& views) {
    JsonObject all;
    for (const auto& [key, view] : views) all.add(key, tensor_json(view, home_));
    if (!all.empty()) json_.add(name, all);
  }

 private:
  JsonObject& json_;
  const Device& home_;
};

void add_bindings(const Bindings& bindings, const Device& home, JsonObject& json) {
  JsonObject captures, params;
  for (const auto& [name, view] : bindings.captures) captures.add(name, tensor_json(view, home, Role::capture));
  for (const auto& [name, value] : bindings.params) {
    std::visit([&, &key = name](const auto& number) { params.add(key, number); }, value);
  }
  if (!captures.empty()) json.add("captures", captures);
  if (!params.empty()) json.add("params", params);
}

JsonObject block_mask_json(const BlockMask& mask) {
  JsonObject json;
  json.add("block", std::vector<std::int64_t>{mask.block().q, mask.block().kv}).add("heads", mask.shape().heads);
  if (mask.is_from_lists()) json.add("lists", mask.shared_by_heads() ? "of all heads" : "of each head");
  if (!mask.mask().empty()) json.add("mask", print(mask.mask()));
  return json;
}

/// Every member of the options that plans depend on.
JsonObject options_json(const AttentionOptions& options, const Device& home) {
  JsonObject json;
  const auto add_mod = [&](const char* name, const Expr& mod) {
    if (!mod.empty()) json.add(name, print(mod));
  };
  add_mod("score_mod", options.score_mod);
  add_mod("mask_mod", options.mask_mod);
  add_mod("weight_mod", options.weight_mod);
  add_bindings(options.bindings, home, json);
  if (options.scale) json.add("scale", *options.scale);
  if (options.normalizer != Normalizer::softmax) json.add("normalizer", problem::name(options.normalizer));
  if (options.block_mask != nullptr) json.add("block_mask", block_mask_json(*options.block_mask));
#define HEDDLE_TENSOR_OPTION(name, group, help) \
  if (options.name) json.add(#name, tensor_json(*options.name, home));
#define HEDDLE_LENGTHS_OPTION(name, group, help) \
  if (options.name) json.add(#name, tensor_json(*options.name, home, Role::lengths));
#define HEDDLE_COUNT_OPTION(name) \
  if (options.name) json.add(#name, *options.name);
#define HEDDLE_FLAG_OPTION(name, shown, help) \
  if (options.name) json.add(#name, true);
#define HEDDLE_BACKWARD_FLAG_OPTION(name, shown, help) \
  if (options.name) json.add(#name, true);
#include "heddle/options.def"
  return json;
}

JsonObject unwritten(const Error& error) { return JsonObject().add("unwritten", error.what()); }

}  // namespace

JsonObject write_call(const AttentionTensors& tensors, const AttentionOptions& options) try {
  const auto& [q, k, v, o, lse, max_scores, lse_rest] = tensors;
  const Device home = q.device;
  JsonObject json;
  json.add("of", "attention");
  CallWriter writer(json, home);
  writer.add("q", q), writer.add("k", k), writer.add("v", v), writer.add("o", o);
  if (k.data != nullptr && k.data == v.data) json.add("v_is_k", true);
  writer.add("lse", lse), writer.add("max_scores", max_scores), writer.add("lse_rest", lse_rest);
  json.add("options", options_json(options, home));
  return json;
} catch (const Error& error) {
  return unwritten(error);
}

JsonObject write_call(const BackwardTensors& tensors, const AttentionOptions& options) try {
  const auto& [q, k, v, o, lse, d_o, d_lse, lse_rest, dq, dk, dv, d_sinks, d_captures, d_params] = tensors;
  const Device home = q.device;
  JsonObject json;
  json.add("of", "backward");
  CallWriter writer(json, home);
  writer.add("q", q), writer.add("k", k), writer.add("v", v), writer.add("o", o);
  if (k.data != nullptr && k.data == v.data) json.add("v_is_k", true);
  writer.add("lse", lse), writer.add("d_o", d_o), writer.add("d_lse", d_lse), writer.add("lse_rest", lse_rest);
  writer.add("dq", dq), writer.add("dk", dk), writer.add("dv", dv), writer.add("d_sinks", d_sinks);
  writer.add("d_captures", d_captures), writer.add("d_params", d_params);
  json.add("options", options_json(options, home));
  return json;
} catch (const Error& error) {
  return unwritten(error);
}

}  // namespace heddle::engine
