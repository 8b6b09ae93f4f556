#include "backward_job.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <sstream>
#include <utility>

#include "heddle/error.h"

namespace heddle::cli {
namespace {

template <class... Args>
[[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) {
  throw Error(ErrorCode::invalid_argument, fmt::format(format, std::forward<Args>(args)...));
}

bool is_fp8(DType dtype) { return dtype == DType::e4m3 || dtype == DType::e5m2; }

/// The tensors of --backward by their names.
std::map<std::string, Tensor> load_tensors(const std::vector<std::string>& assignments) {
  std::map<std::string, Tensor> tensors;
  for (const std::string& text : assignments) {
    const auto [name, source] = parse_assignment("--backward", text);
    if (name != "DO" && name != "DLSE" && name != "O" && name != "LSE") {
      refuse("--backward: there is no tensor '{}'; DO, DLSE, O and LSE are accepted", name);
    }
    if (tensors.contains(name)) refuse("--backward: {} is given twice", name);
    const std::string axes = name == "DO" || name == "O" ? "[B, H, S, D]" : "[B, H, S]";
    tensors.emplace(name, with_batch(name, load_tensor("--backward", source), axes));
  }
  if (!tensors.contains("DO")) refuse("--backward: DO, the gradient of o, is not given; DO=FILE is accepted");
  return tensors;
}

/// o and lse, or room for them.
void take_forward(const std::map<std::string, Tensor>& tensors, BackwardJob& job) {
  const bool softmax = job.attention.options.normalizer == Normalizer::softmax;
  job.forward_given = tensors.contains("O");
  if (tensors.contains("LSE") && (!softmax || !job.forward_given)) {
    refuse("--backward: LSE is given {}",
           softmax ? "without O; both or none are accepted" : "with a normalizer that has no lse");
  }
  if (!job.forward_given) {
    job.forward = job.attention.allocate();
    return;
  }
  if (softmax && !tensors.contains("LSE")) refuse("--backward: O is given without LSE; both or none are accepted");
  job.forward.o = tensors.at("O");
  if (softmax) job.forward.lse = tensors.at("LSE");
}

/// All names that the score and weight mods read and that can have a gradient.
GradientRequest all_gradients(const AttentionOptions& options) {
  GradientRequest request;
  request.sinks = options.sinks.has_value();
  Symbols read;
  for (const Expr& mod : {options.score_mod, options.weight_mod}) {
    if (mod.empty()) continue;
    const Symbols own = symbols_of(mod);
    read.captures.insert(own.captures.begin(), own.captures.end());
    read.params.insert(own.params.begin(), own.params.end());
  }
  for (const auto& [name, capture] : read.captures) {
    if (is_floating(capture.dtype)) request.captures.push_back(name);
  }
  for (const auto& [name, type] : read.params) {
    if (type == ExprType::f32) request.params.push_back(name);
  }
  return request;
}

GradientRequest named_gradients_of(const std::string& names, const AttentionOptions& options) {
  const GradientRequest all = all_gradients(options);
  GradientRequest request = {.q = false, .k = false, .v = false};
  std::istringstream list(names);
  for (std::string name; std::getline(list, name, ',');) {
    if (name == "q") {
      request.q = true;
    } else if (name == "k") {
      request.k = true;
    } else if (name == "v") {
      request.v = true;
    } else if (name == "sinks" && all.sinks) {
      request.sinks = true;
    } else if (std::ranges::count(all.captures, name) > 0) {
      request.captures.push_back(name);
    } else if (std::ranges::count(all.params, name) > 0) {
      request.params.push_back(name);
    } else {
      std::vector<std::string> known = {"q", "k", "v"};
      if (all.sinks) known.emplace_back("sinks");
      known.insert(known.end(), all.captures.begin(), all.captures.end());
      known.insert(known.end(), all.params.begin(), all.params.end());
      refuse("--gradients: '{}' has none; {} are accepted", name, fmt::join(known, ", "));
    }
  }
  return request;
}

/// As attention_backward() allocates them.
BackwardResult allocate(const AttentionJob& attention, const GradientRequest& request) {
  const Device device = attention.q.view().device;
  const DType real = attention.q.dtype() == DType::f64 ? DType::f64 : DType::f32;
  const auto like = [&](const ConstTensorView& of, DType fp8) {
    return Tensor::empty_on(device, is_fp8(of.dtype) ? fp8 : of.dtype, of.shape);
  };
  BackwardResult result;
  if (request.q) result.dq = like(attention.q, DType::bf16);
  if (request.k) result.dk = like(attention.k, DType::bf16);
  if (request.v) result.dv = like(attention.v, DType::bf16);
  if (request.sinks) result.d_sinks = like(*attention.options.sinks, DType::f32);
  for (const std::string& name : request.captures) {
    result.d_captures[name] = like(attention.options.bindings.captures.at(name), DType::f32);
  }
  for (const std::string& name : request.params) result.d_params[name] = Tensor::empty_on(device, real, {});
  return result;
}

/// Converts to --dtype, if it is given, and moves to q's device.
void convert_and_move(BackwardJob& job, const std::string& dtype) {
  const Tensor& q = job.attention.q;
  const DType of_o = is_fp8(q.dtype()) ? DType::bf16 : q.dtype();
  const DType real = q.dtype() == DType::f64 ? DType::f64 : DType::f32;
  const auto one = [&](Tensor& tensor, DType wanted) {
    if (!dtype.empty() && tensor.dtype() != wanted) tensor = tensor.to(wanted);
    if (q.view().device.kind != DeviceKind::cpu) tensor = tensor.to(q.view().device);
  };
  one(job.d_o, of_o);
  if (job.d_lse) one(*job.d_lse, real);
  if (!job.forward_given) return;
  one(job.forward.o, of_o);
  if (job.attention.options.normalizer == Normalizer::softmax) one(job.forward.lse, real);
}

std::optional<AttentionPlan> forward_plan(const BackwardJob& job) {
  if (job.forward_given) return std::nullopt;
  return AttentionPlan(job.attention.tensors(job.forward), job.attention.options);
}

}  // namespace

BackwardJob load_backward(const BackwardArguments& arguments, const std::string& dtype, AttentionJob attention) {
  BackwardJob job;
  job.attention = std::move(attention);
  AttentionOptions& options = job.attention.options;
#define HEDDLE_BACKWARD_FLAG_OPTION(name, shown, help) options.name = arguments.name;
#include "heddle/options.def"
  const std::map<std::string, Tensor> tensors = load_tensors(arguments.tensors);
  job.d_o = tensors.at("DO");
  if (const auto d_lse = tensors.find("DLSE"); d_lse != tensors.end()) job.d_lse = d_lse->second;
  take_forward(tensors, job);
  convert_and_move(job, dtype);
  job.request = arguments.gradients.empty() ? all_gradients(options) : named_gradients_of(arguments.gradients, options);
  job.gradients = allocate(job.attention, job.request);
  return job;
}

BackwardPlans::BackwardPlans(const BackwardJob& job)
    : forward(forward_plan(job)), backward(job.tensors(), job.attention.options) {}

BackwardTensors BackwardJob::tensors() const {
  BackwardTensors tensors{.q = attention.q, .k = attention.k, .v = attention.v, .o = forward.o, .d_o = d_o};
  if (attention.options.normalizer == Normalizer::softmax) tensors.lse = forward.lse;
  if (d_lse) tensors.d_lse = *d_lse;
  if (request.q) tensors.dq = gradients.dq;
  if (request.k) tensors.dk = gradients.dk;
  if (request.v) tensors.dv = gradients.dv;
  if (request.sinks) tensors.d_sinks = gradients.d_sinks;
  for (const auto& [name, tensor] : gradients.d_captures) tensors.d_captures[name] = tensor;
  for (const auto& [name, tensor] : gradients.d_params) tensors.d_params[name] = tensor;
  return tensors;
}

std::vector<std::pair<std::string, Tensor>> BackwardJob::named_gradients() const {
  std::vector<std::pair<std::string, Tensor>> named;
  if (request.q) named.emplace_back("dq", gradients.dq);
  if (request.k) named.emplace_back("dk", gradients.dk);
  if (request.v) named.emplace_back("dv", gradients.dv);
  if (request.sinks) named.emplace_back("d_sinks", gradients.d_sinks);
  for (const auto& [name, tensor] : gradients.d_captures) named.emplace_back("d_captures." + name, tensor);
  for (const auto& [name, tensor] : gradients.d_params) named.emplace_back("d_params." + name, tensor);
  return named;
}

}  // namespace heddle::cli
