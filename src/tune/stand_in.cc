#include "tune/stand_in.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <random>
#include <utility>

#include "backend/device.h"
#include "base/per_thread.h"
#include "base/view_checks.h"
#include "problem/check_run.h"

namespace heddle::tune {
namespace {

constexpr std::int64_t kPattern = std::int64_t{1} << 16;  // elements that repeat
constexpr std::int64_t kAlignment = 64;

std::int64_t rounded_up(std::int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

/// Normally distributed numbers; zeros for types that are no reals.
const Tensor& pattern_of(DType dtype) {
  static base::PerThread<std::map<DType, Tensor>> patterns;
  const auto found = patterns.here().try_emplace(dtype).first;
  if (found->second.count() > 0) return found->second;
  Tensor numbers = Tensor::zeros(DType::f32, {kPattern});
  if (is_floating(dtype)) {
    std::mt19937 generator(1);
    std::normal_distribution<float> normal;
    auto* values = static_cast<float*>(numbers.data());
    std::generate_n(values, kPattern, [&] { return normal(generator); });
  }
  return found->second = numbers.to(dtype);
}

void fill(const Device& device, void* to, std::int64_t bytes, DType dtype) {
  const Tensor& pattern = pattern_of(dtype);
  const std::int64_t step = kPattern * size_of(dtype);
  const backend::DeviceInterface& memory = *backend::find_device_kind(device.kind);
  for (std::int64_t at = 0; at < bytes; at += step) {
    memory.copy_and_wait(device.index, static_cast<std::byte*>(to) + at, pattern.data(),
                         static_cast<std::size_t>(std::min(step, bytes - at)));
  }
}

/// i64 values of a tensor of integers.
template <class Value>
Tensor integers(const Dims& shape, Value&& value) {
  Tensor tensor = Tensor::empty(DType::i64, shape);
  auto* values = static_cast<std::int64_t*>(tensor.data());
  for (std::int64_t i = 0; i < tensor.count(); ++i) values[i] = value(i);
  return tensor;
}

}  // namespace

StandIn::StandIn(const plan::Request& request) : tensors_(request.tensors), options_(request.options) {
  options_.progress = nullptr;
  const bool values_are_keys = tensors_.v.data == tensors_.k.data && tensors_.v.count() > 0;
  for (ConstTensorView* view : {&tensors_.q, &tensors_.k, &tensors_.v}) replace(*view);
  if (values_are_keys) tensors_.v.data = tensors_.k.data;
  replace(tensors_.o);
  replace(tensors_.lse);
  replace(tensors_.max_scores);
  replace(tensors_.lse_rest);
  for (auto* view : {&options_.sinks, &options_.q_rest, &options_.k_rest, &options_.q_descale, &options_.k_descale,
                     &options_.v_descale}) {
    replace(*view);
  }
  if (options_.page_table) {
    const std::int64_t pages = std::max<std::int64_t>(1, tensors_.k.shape[0]);
    replace_integers(options_.page_table,
                     integers(options_.page_table->shape, [&](std::int64_t i) { return i % pages; }));
  }
  take_lengths(request.problem);
  take_captures(request);
  if (request.backward != nullptr) take_gradients(*request.backward);
}

void StandIn::take_lengths(const problem::AttentionProblem& problem) {
  if (!problem.device_lengths && !problem.device_kv_starts) return;
  const Sequence most = problem.sequences.empty() ? Sequence{} : problem.sequences.front();
  const auto take = [&](std::optional<ConstTensorView>& view, auto&& value) {
    if (view && view->device.kind != DeviceKind::cpu) replace_integers(view, integers(view->shape, value));
  };
  take(options_.q_lengths, [&](std::int64_t) { return most.q_len; });
  take(options_.kv_lengths, [&](std::int64_t) { return most.kv_len; });
  const std::int64_t sequences = std::max<std::int64_t>(1, problem.batch);
  take(options_.cu_seqlens_q, [&](std::int64_t i) { return std::min(i * most.q_len, i * problem.q_rows / sequences); });
  take(options_.cu_seqlens_kv,
       [&](std::int64_t i) { return std::min(i * most.kv_len, i * problem.kv_rows / sequences); });
  if (options_.page_starts) {
    const std::int64_t entries = options_.page_table->shape[0];
    take(options_.page_starts, [&](std::int64_t i) { return i * entries / sequences; });
  }
  take(options_.prefix_group, [](std::int64_t) { return 0; });
  take(options_.prefix_len, [&](std::int64_t) { return most.kv_len / 2; });
  for (auto* view : {&options_.q_start, &options_.kv_start}) take(*view, [](std::int64_t) { return 0; });
}

void StandIn::take_captures(const plan::Request& request) {
  const Symbols mask = request.problem.mask_mod.empty() ? Symbols() : symbols_of(request.problem.mask_mod);
  const bool values_decide = problem::reads_depend_on_values(request.problem, request.options.bindings);
  for (auto& [name, view] : options_.bindings.captures) {
    const bool was_read = mask.captures.contains(name) || (values_decide && !is_floating(view.dtype));
    if (!was_read) replace(view);
  }
}

void StandIn::take_gradients(const BackwardTensors& planned) {
  backward_ = planned;
  backward_->q = tensors_.q;
  backward_->k = tensors_.k;
  backward_->v = tensors_.v;
  backward_->o = tensors_.o;
  if (backward_->lse) backward_->lse = *tensors_.lse;
  if (backward_->lse_rest) backward_->lse_rest = *tensors_.lse_rest;
  replace(backward_->d_o);
  replace(backward_->d_lse);
  for (auto* view : {&backward_->dq, &backward_->dk, &backward_->dv, &backward_->d_sinks}) replace(*view);
  for (NamedViews* views : {&backward_->d_captures, &backward_->d_params}) {
    for (auto& [name, view] : *views) replace(view);
  }
}

/// The address of the element at index 0, in memory of this object that holds all of the view's.
void* StandIn::memory_for(const ConstTensorView& view) {
  const base::Footprint footprint = base::footprint_of("a tensor to measure with", view);
  if (footprint.bytes == 0) return nullptr;
  const std::int64_t before = rounded_up(-footprint.lowest);
  const std::int64_t bytes = before + rounded_up(footprint.lowest + footprint.bytes);
  void* memory = memory_.emplace_back(Tensor::empty_on(view.device, DType::u8, {bytes})).data();
  fill(view.device, memory, bytes, view.dtype);
  return static_cast<std::byte*>(memory) + before;
}

template <class View>
void StandIn::replace(View& view) {
  view.data = memory_for(view);
}

template <class View>
void StandIn::replace(std::optional<View>& view) {
  if (view) replace(*view);
}

void StandIn::replace_integers(std::optional<ConstTensorView>& view, const Tensor& values) {
  const Tensor& there = memory_.emplace_back(values.to(view->dtype).to(view->device));
  view->data = there.data();
  view->strides = there.view().strides;
}

backend::RunArguments StandIn::arguments(const BlockMask* block_mask, void* workspace) const {
  return {.tensors = tensors_,
          .options = &options_,
          .bindings = &options_.bindings,
          .block_mask = block_mask,
          .workspace = workspace,
          .stream = nullptr,
          .backward = backward_ ? &*backward_ : nullptr};
}

}  // namespace heddle::tune
