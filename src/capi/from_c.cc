#include "from_c.h"

#include <fmt/format.h>

#include <span>
#include <utility>

#include "heddle/error.h"
#include "structs.h"

namespace heddle::capi {
namespace {

// The numbers of c.h are the C++ enums': a cast converts them.
template <class Enum>
constexpr bool same(int number, Enum value) {
  return number == static_cast<int>(value);
}
static_assert(same(HEDDLE_F64, DType::f64) && same(HEDDLE_F32, DType::f32) && same(HEDDLE_F16, DType::f16) &&
              same(HEDDLE_BF16, DType::bf16) && same(HEDDLE_E4M3, DType::e4m3) && same(HEDDLE_E5M2, DType::e5m2) &&
              same(HEDDLE_I64, DType::i64) && same(HEDDLE_I32, DType::i32) && same(HEDDLE_I16, DType::i16) &&
              same(HEDDLE_I8, DType::i8) && same(HEDDLE_U64, DType::u64) && same(HEDDLE_U32, DType::u32) &&
              same(HEDDLE_U16, DType::u16) && same(HEDDLE_U8, DType::u8) && same(HEDDLE_BOOL, DType::boolean) &&
              kDTypeCount == 15);
static_assert(same(HEDDLE_DEVICE_CPU, DeviceKind::cpu) && same(HEDDLE_DEVICE_CUDA, DeviceKind::cuda) &&
              same(HEDDLE_DEVICE_ROCM, DeviceKind::rocm));
static_assert(same(HEDDLE_NORMALIZER_SOFTMAX, Normalizer::softmax) && same(HEDDLE_NORMALIZER_NONE, Normalizer::none) &&
              same(HEDDLE_NORMALIZER_SIGMOID, Normalizer::sigmoid));
static_assert(same(HEDDLE_BACKEND_AUTOMATIC, BackendChoice::automatic) &&
              same(HEDDLE_BACKEND_CPU, BackendChoice::cpu) &&
              same(HEDDLE_BACKEND_REFERENCE, BackendChoice::reference) &&
              same(HEDDLE_BACKEND_CUDA, BackendChoice::cuda) && same(HEDDLE_BACKEND_AMD, BackendChoice::amd));
static_assert(HEDDLE_MAX_RANK == kMaxRank);

template <class... Args>
[[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) {
  capi::refuse(fmt::format(format, std::forward<Args>(args)...));
}

template <class Enum>
Enum to_enum(std::string_view name, std::string_view field, int number, Enum last) {
  if (number < 0 || number > static_cast<int>(last)) {
    refuse("{}.{} is {}; 0 to {} are accepted", name, field, number, static_cast<int>(last));
  }
  return static_cast<Enum>(number);
}

std::span<const std::int64_t> known_axes(const std::int64_t (&values)[HEDDLE_MAX_RANK], int rank) {
  return std::span<const std::int64_t>(values).first(static_cast<std::size_t>(rank));
}

void check_count(std::string_view owner, std::string_view name, std::int64_t count, const void* entries) {
  if (count < 0) refuse("{}.{}_count is {}; at least 0 is accepted", owner, name, count);
  if (count > 0 && entries == nullptr) refuse("{0}.{1}_count is {2}, but {0}.{1}s is null", owner, name, count);
}

/// `declare` makes the name's Param or Capture, which throws for a name that no text can read.
template <class F>
void check_name(const Bindings& bound, std::string_view list, std::int64_t index, const char* name, F&& declare) {
  if (name == nullptr || *name == '\0') {
    refuse("bindings.{}[{}].name is {}; a name is accepted", list, index, name == nullptr ? "null" : "empty");
  }
  if (bound.params.contains(name) || bound.captures.contains(name)) {
    refuse("bindings.{}[{}].name is '{}', which is given twice", list, index, name);
  }
  try {
    declare();
  } catch (const Error& error) {
    refuse("bindings.{}[{}].name: {}", list, index, error.what());
  }
}

// `list`: d_capture, d_param.
NamedViews to_gradients(std::string_view list, const heddle_gradient* gradients, std::int64_t count) {
  check_count("tensors", list, count, gradients);
  NamedViews views;
  for (std::int64_t i = 0; i < count; ++i) {
    const char* name = gradients[i].name;
    if (name == nullptr) refuse("tensors.{}s[{}].name is null; a name is accepted", list, i);
    if (views.contains(name)) refuse("tensors.{}s[{}].name is '{}', which is given twice", list, i, name);
    views.emplace(name, to_view(fmt::format("{}s['{}']", list, name), gradients[i].tensor));
  }
  return views;
}

ParamValue to_value(const heddle_param& param) {
  switch (param.type) {
    case HEDDLE_PARAM_F32:
      return param.real;
    case HEDDLE_PARAM_I32:
      return param.integer;
    case HEDDLE_PARAM_BOOL:
      if (param.integer == 0 || param.integer == 1) return param.integer == 1;
      refuse("param '{}' is a boolean of value {}; 0 and 1 are accepted", param.name, param.integer);
    default:
      refuse("param '{}' has type {}; 0 (f32), 1 (i32) and 2 (bool) are accepted", param.name, param.type);
  }
}

}  // namespace

void refuse(const std::string& sentence) { throw Error(ErrorCode::invalid_argument, sentence); }

void require(const void* pointer, std::string_view name, std::string_view type) {
  if (pointer == nullptr) refuse("{} is null; a {} is accepted", name, type);
}

TensorView to_view(std::string_view name, const heddle_tensor* tensor) {
  require(tensor, name, "heddle_tensor");
  if (tensor->rank < 0 || tensor->rank > HEDDLE_MAX_RANK) {
    refuse("{}.rank is {}; 0 to {} are accepted", name, tensor->rank, static_cast<int>(HEDDLE_MAX_RANK));
  }
  const Device device = {to_enum(name, "device_kind", tensor->device_kind, DeviceKind::rocm), tensor->device_index};
  return {tensor->data, to_enum(name, "dtype", tensor->dtype, DType::boolean),
          Dims(known_axes(tensor->shape, tensor->rank)), Dims(known_axes(tensor->strides, tensor->rank)), device};
}

std::optional<TensorView> to_optional_view(std::string_view name, const heddle_tensor* tensor) {
  if (tensor == nullptr) return std::nullopt;
  return to_view(name, tensor);
}

AttentionTensors to_tensors(const heddle_attention_tensors* tensors) {
  require(tensors, "tensors", "heddle_attention_tensors");
  const auto given = known_fields("tensors", tensors);
  return {to_view("q", given.q),
          to_view("k", given.k),
          to_view("v", given.v),
          to_view("o", given.o),
          to_optional_view("lse", given.lse),
          to_optional_view("max_scores", given.max_scores),
          to_optional_view("lse_rest", given.lse_rest)};
}

BackwardTensors to_tensors(const heddle_backward_tensors* tensors) {
  require(tensors, "tensors", "heddle_backward_tensors");
  const auto given = known_fields("tensors", tensors);
  BackwardTensors result = {.q = to_view("q", given.q),
                            .k = to_view("k", given.k),
                            .v = to_view("v", given.v),
                            .o = to_view("o", given.o),
                            .lse = to_optional_view("lse", given.lse),
                            .d_o = to_view("d_o", given.d_o),
                            .d_lse = to_optional_view("d_lse", given.d_lse),
                            .lse_rest = to_optional_view("lse_rest", given.lse_rest)};
  result.dq = to_optional_view("dq", given.dq);
  result.dk = to_optional_view("dk", given.dk);
  result.dv = to_optional_view("dv", given.dv);
  result.d_sinks = to_optional_view("d_sinks", given.d_sinks);
  result.d_captures = to_gradients("d_capture", given.d_captures, given.d_capture_count);
  result.d_params = to_gradients("d_param", given.d_params, given.d_param_count);
  return result;
}

bool to_flag(std::string_view name, int number) {
  if (number != 0 && number != 1) refuse("{} is {}; 0 and 1 are accepted", name, number);
  return number == 1;
}

Bindings to_bindings(const heddle_bindings* bindings) {
  Bindings bound;
  if (bindings == nullptr) return bound;
  const auto given = known_fields("bindings", bindings);
  check_count("bindings", "param", given.param_count, given.params);
  for (std::int64_t i = 0; i < given.param_count; ++i) {
    const heddle_param& param = given.params[i];
    check_name(bound, "params", i, param.name, [&] { heddle::param(param.name, ExprType::i32); });
    bound.params.emplace(param.name, to_value(param));
  }
  check_count("bindings", "capture", given.capture_count, given.captures);
  for (std::int64_t i = 0; i < given.capture_count; ++i) {
    const heddle_capture& capture = given.captures[i];
    check_name(bound, "captures", i, capture.name, [&] { Capture(capture.name, DType::f32, 0); });
    bound.captures.emplace(capture.name, to_view(fmt::format("capture '{}'", capture.name), capture.tensor));
  }
  return bound;
}

Expr to_mod(std::string_view option, const char* text, const Bindings& bindings) {
  if (text == nullptr) return {};
  try {
    return parse(text, Symbols(bindings));
  } catch (const Error& error) {
    throw Error(error.code(), fmt::format("{}: {}", option, error.what()));
  }
}

AttentionOptions to_options(const heddle_attention_options* options) {
  AttentionOptions result;
  if (options == nullptr) return result;
  const auto given = known_fields("options", options);
  if (given.reserved != 0) refuse("options.reserved is {}; 0 is accepted", given.reserved);

  result.bindings = to_bindings(given.bindings);
  result.score_mod = to_mod("score_mod", given.score_mod, result.bindings);
  result.mask_mod = to_mod("mask_mod", given.mask_mod, result.bindings);
  result.weight_mod = to_mod("weight_mod", given.weight_mod, result.bindings);

  if (given.scale != nullptr) result.scale = *given.scale;
#define HEDDLE_TENSOR_OPTION(name, group, help) result.name = to_optional_view(#name, given.name);
#define HEDDLE_LENGTHS_OPTION(name, group, help) result.name = to_optional_view(#name, given.name);
#define HEDDLE_COUNT_OPTION(name) \
  if (given.name != 0) result.name = given.name;
#define HEDDLE_FLAG_OPTION(name, shown, help) result.name = to_flag("options." #name, given.name);
#define HEDDLE_BACKWARD_FLAG_OPTION(name, shown, help) result.name = to_flag("options." #name, given.name);
#include "heddle/options.def"

  result.normalizer = to_enum("options", "normalizer", given.normalizer, Normalizer::sigmoid);
  result.backend = to_enum("options", "backend", given.backend, BackendChoice::amd);
  result.threads = given.threads;
  result.tuning = to_enum("options", "tuning", given.tuning, Tuning::again);
  result.stream = given.stream;
  if (given.progress != nullptr) {
    result.progress = [report = given.progress, context = given.progress_context](double done) {
      report(done, context);
    };
  }
  if (given.block_mask != nullptr) result.block_mask = given.block_mask->mask;
  return result;
}

}  // namespace heddle::capi
