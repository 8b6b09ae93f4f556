// The one-call functions of the backward, on top of the plan cache.
#include "heddle/backward.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/one_call.h"
#include "engine/reports.h"
#include "heddle/error.h"

namespace heddle {
namespace {

bool is_fp8(DType dtype) { return dtype == DType::e4m3 || dtype == DType::e5m2; }

[[noreturn]] void refuse(const std::string& sentence) { throw Error(ErrorCode::invalid_argument, sentence); }

void refuse_given_gradients(const BackwardTensors& tensors) {
  if (tensors.dq || tensors.dk || tensors.dv || tensors.d_sinks || !tensors.d_captures.empty() ||
      !tensors.d_params.empty()) {
    refuse("tensors has gradients, which attention_backward allocates; attention_backward_into takes the caller's");
  }
}

// Shape, dtype and device, without memory.
TensorView unallocated(const ConstTensorView& of, DType dtype) { return {nullptr, dtype, of.shape, of.device}; }

// The wanted gradients, without memory. Validation refuses a name that has no value.
BackwardTensors planned_tensors(const BackwardTensors& inputs, const AttentionOptions& options,
                                const GradientRequest& request) {
  BackwardTensors planned = inputs;
  const auto like = [](const ConstTensorView& of) {
    return unallocated(of, is_fp8(of.dtype) ? DType::bf16 : of.dtype);
  };
  if (request.q) planned.dq = like(inputs.q);
  if (request.k) planned.dk = like(inputs.k);
  if (request.v) planned.dv = like(inputs.v);
  if (request.sinks) {
    if (!options.sinks) refuse("request.sinks is true, but there are no sinks");
    planned.d_sinks = unallocated(*options.sinks, options.sinks->dtype);
  }
  const DType real = inputs.q.dtype == DType::f64 ? DType::f64 : DType::f32;
  for (const std::string& name : request.captures) {
    const auto found = options.bindings.captures.find(name);
    if (found == options.bindings.captures.end()) {
      refuse(fmt::format("request.captures has '{}', but bindings has no such capture", name));
    }
    const DType own = found->second.dtype;
    planned.d_captures[name] = unallocated(found->second, is_floating(own) && !is_fp8(own) ? own : DType::f32);
  }
  for (const std::string& name : request.params) {
    planned.d_params[name] = TensorView(nullptr, real, {}, inputs.q.device);
  }
  return planned;
}

Tensor allocate(const TensorView& view) { return Tensor::empty_on(view.device, view.dtype, view.shape); }

// Allocates what was planned, and points the views at it.
BackwardResult allocate(BackwardTensors& tensors) {
  BackwardResult result;
  const auto one = [](std::optional<TensorView>& view, Tensor& tensor) {
    if (!view) return;
    tensor = allocate(*view);
    view = tensor;
  };
  one(tensors.dq, result.dq);
  one(tensors.dk, result.dk);
  one(tensors.dv, result.dv);
  one(tensors.d_sinks, result.d_sinks);
  const auto all = [](NamedViews& views, auto& named) {
    for (auto& [name, view] : views) view = named.emplace(name, allocate(view)).first->second;
  };
  all(tensors.d_captures, result.d_captures);
  all(tensors.d_params, result.d_params);
  return result;
}

}  // namespace

BackwardResult attention_backward(const BackwardTensors& tensors, const AttentionOptions& options,
                                  const GradientRequest& request) {
  return engine::reported("call", [&] {
    refuse_given_gradients(tensors);
    BackwardTensors own = planned_tensors(tensors, options, request);
    engine::check_not_capturing(tensors.q.device, options.stream, "attention_backward");
    const AttentionPlan plan = cached_plan(own, options);
    BackwardResult result = allocate(own);
    engine::run_kept(plan, own, options);
    return result;
  });
}

void attention_backward_into(const BackwardTensors& tensors, const AttentionOptions& options) {
  return engine::reported("call", [&] {
    engine::check_not_capturing(tensors.q.device, options.stream, "attention_backward");
    const AttentionPlan plan = cached_plan(tensors, options);
    engine::run_kept(plan, tensors, options);
  });
}

}  // namespace heddle
