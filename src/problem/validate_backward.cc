// Validation of a backward: first as its forward, then its own inputs and the wanted gradients.
#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <string_view>

#include "expr/node.h"
#include "problem/one_device.h"
#include "problem/overlap.h"
#include "problem/problem.h"
#include "problem/refuse.h"
#include "problem/tensors.h"

namespace heddle::problem {
namespace {

TensorView as_output(const ConstTensorView& view) {
  return TensorView(const_cast<void*>(view.data), view.dtype, view.shape, view.strides, view.device);
}

void check_forward_results(const BackwardTensors& tensors, const AttentionOptions& options) {
  if (options.batch_invariant) {
    refuse("batch_invariant is true; a backward takes false: it is a promise about o and lse, which a forward makes");
  }
  for (const auto& [name, rest] : {std::pair("q_rest", &options.q_rest), {"k_rest", &options.k_rest}}) {
    if (*rest) refuse("{} is given; a backward takes queries and keys that are one tensor each", name);
  }
  if (options.page_table) {
    refuse("page_table is given; a backward takes keys and values that are not in pages");
  }
  if (options.cu_seqlens_kv && options.kv_lengths && options.kv_lengths->device.kind != tensors.q.device.kind) {
    refuse("kv_lengths is given beside cu_seqlens_kv, and on the CPU; a backward on {} takes them where q is",
           name(tensors.q.device));
  }
  const bool softmax = options.normalizer == Normalizer::softmax;
  if (softmax && !tensors.lse)
    refuse("lse is not given; the backward of softmax takes the lse that the forward stored");
  // The forward's validation refuses an lse beside another normalizer.
  if (!softmax && tensors.d_lse) {
    refuse("d_lse is given with normalizer {}; only softmax has an lse", name(options.normalizer));
  }
}

void check_incoming(const BackwardTensors& tensors, const Device& device) {
  check_rows("d_o", tensors.d_o, 4, "[B, Hq, Sq, Dv]");
  check_beside("d_o", tensors.d_o, device);
  if (!(tensors.d_o.shape == tensors.o.shape)) {
    refuse("d_o has shape {}; {}, o's, is accepted", to_string(tensors.d_o.shape), to_string(tensors.o.shape));
  }
  if (tensors.d_o.dtype != tensors.o.dtype && tensors.d_o.dtype != tensors.q.dtype) {
    refuse("d_o is {}; {}, o's dtype, and {}, q's, are accepted", name(tensors.d_o.dtype), name(tensors.o.dtype),
           name(tensors.q.dtype));
  }
  if (!tensors.d_lse) return;
  check_rows("d_lse", *tensors.d_lse, 3, "[B, Hq, Sq]");
  check_beside("d_lse", *tensors.d_lse, device);
  if (!(tensors.d_lse->shape == tensors.lse->shape)) {
    refuse("d_lse has shape {}; {}, lse's, is accepted", to_string(tensors.d_lse->shape),
           to_string(tensors.lse->shape));
  }
  if (tensors.d_lse->dtype != tensors.lse->dtype) {
    refuse("d_lse is {}; {}, lse's dtype, is accepted", name(tensors.d_lse->dtype), name(tensors.lse->dtype));
  }
}

// Everything of a gradient but its last stride.
void check_gradient(std::string_view name, const ConstTensorView& gradient, const Dims& shape, std::string_view of,
                    const Device& device) {
  check_view(name, gradient);
  check_beside(name, gradient, device);
  if (!is_floating(gradient.dtype)) {
    refuse("{} is {}; f64, f32, f16, bf16, e4m3 and e5m2 are accepted", name, heddle::name(gradient.dtype));
  }
  if (!(gradient.shape == shape)) {
    refuse("{} has shape {}; {}, that of {}, is accepted", name, to_string(gradient.shape), to_string(shape), of);
  }
  if (overlaps_itself(gradient)) {
    refuse("{} has shape {} and strides {}, so that elements share memory; one place an element is accepted", name,
           to_string(gradient.shape), to_string(gradient.strides));
  }
}

void check_row_gradient(std::string_view name, const std::optional<TensorView>& gradient, const ConstTensorView& of,
                        std::string_view of_name, const Device& device) {
  if (!gradient) return;
  check_rows(name, *gradient, 4, "[B, H, S, D]");
  check_gradient(name, *gradient, of.shape, of_name, device);
}

void check_sinks_gradient(const AttentionProblem& problem, const std::optional<TensorView>& gradient,
                          const AttentionOptions& options) {
  if (!gradient) return;
  if (!options.sinks) refuse("d_sinks is given, but there are no sinks");
  if (options.partial_keys) {
    refuse("d_sinks is given with partial_keys; it is of no part of the keys: a call without partial_keys is accepted");
  }
  check_gradient("d_sinks", *gradient, options.sinks->shape, "sinks", problem.device);
}

bool is_in(const std::vector<std::string>& sorted, const std::string& name) {
  return std::ranges::binary_search(sorted, name);
}

// A mod that has gradients: it multiplies or adds, and does not select.
bool score_or_weight_reads(const AttentionProblem& problem, const auto& reads) {
  return (!problem.score_mod.empty() && reads(symbols_of(problem.score_mod))) ||
         (!problem.weight_mod.empty() && reads(symbols_of(problem.weight_mod)));
}

void refuse_unread_gradient(std::string_view of, const std::string& name, const std::vector<std::string>& read) {
  const std::string names = read.empty() ? "none" : fmt::format("'{}'", fmt::join(read, "', '"));
  refuse("{}['{}'] is given, but no mod reads it; {} is accepted", of, name, names);
}

void check_capture_gradients(const AttentionProblem& problem, const NamedViews& gradients, const Bindings& bindings) {
  for (const auto& [name, gradient] : gradients) {
    if (!is_in(problem.captures, name)) refuse_unread_gradient("d_captures", name, problem.captures);
    const ConstTensorView& capture = bindings.captures.find(name)->second;
    const std::string argument = fmt::format("d_captures['{}']", name);
    if (!is_floating(capture.dtype)) {
      refuse("{} is given, but capture '{}' is {}; gradients of floating captures are accepted", argument, name,
             heddle::name(capture.dtype));
    }
    if (!score_or_weight_reads(problem, [&](const Symbols& symbols) { return symbols.captures.contains(name); })) {
      refuse("{} is given, but only the mask reads capture '{}'; a mask has no gradient", argument, name);
    }
    check_gradient(argument, gradient, capture.shape, fmt::format("capture '{}'", name), problem.device);
  }
}

void check_param_gradients(const AttentionProblem& problem, const NamedViews& gradients) {
  for (const auto& [name, gradient] : gradients) {
    if (!is_in(problem.params, name)) refuse_unread_gradient("d_params", name, problem.params);
    const std::string argument = fmt::format("d_params['{}']", name);
    bool floating = false;
    const bool read = score_or_weight_reads(problem, [&](const Symbols& symbols) {
      const auto found = symbols.params.find(name);
      if (found == symbols.params.end()) return false;
      floating = found->second == ExprType::f32;
      return true;
    });
    if (!read) refuse("{} is given, but only the mask reads param '{}'; a mask has no gradient", argument, name);
    if (!floating)
      refuse("{} is given, but param '{}' is no real; gradients of f32 params are accepted", argument, name);
    check_gradient(argument, gradient, {}, fmt::format("param '{}'", name), problem.device);
  }
}

}  // namespace

AttentionTensors forward_tensors(const BackwardTensors& tensors) {
  AttentionTensors forward = {tensors.q, tensors.k, tensors.v, as_output(tensors.o), {}};
  if (tensors.lse) forward.lse = as_output(*tensors.lse);
  if (tensors.lse_rest) forward.lse_rest = as_output(*tensors.lse_rest);
  return forward;
}

template <std::same_as<BackwardTensors> Tensors>
AttentionProblem validate(const Tensors& tensors, const AttentionOptions& options) {
  AttentionProblem problem = validate(forward_tensors(tensors), options);
  problem.pass = Pass::backward;
#define HEDDLE_BACKWARD_FLAG_OPTION(name, shown, help) problem.name = options.name;
#include "heddle/options.def"
  check_forward_results(tensors, options);
  check_incoming(tensors, problem.device);
  problem.with_d_lse = tensors.d_lse.has_value();

  check_row_gradient("dq", tensors.dq, tensors.q, "q", problem.device);
  check_row_gradient("dk", tensors.dk, tensors.k, "k", problem.device);
  check_row_gradient("dv", tensors.dv, tensors.v, "v", problem.device);
  check_sinks_gradient(problem, tensors.d_sinks, options);
  check_capture_gradients(problem, tensors.d_captures, options.bindings);
  check_param_gradients(problem, tensors.d_params);
  WantedGradients& wanted = problem.wanted;
  wanted = {
      tensors.dq.has_value(), tensors.dk.has_value(), tensors.dv.has_value(), tensors.d_sinks.has_value(), {}, {}};
  for (const auto& [name, view] : tensors.d_captures) wanted.captures.push_back(name);
  for (const auto& [name, view] : tensors.d_params) wanted.params.push_back(name);
  if (!wanted.q && !wanted.k && !wanted.v && !wanted.sinks && wanted.captures.empty() && wanted.params.empty()) {
    refuse("no gradient is asked for; at least one of dq, dk, dv, d_sinks, d_captures and d_params is accepted");
  }
  return problem;
}
template AttentionProblem validate(const BackwardTensors&, const AttentionOptions&);

}  // namespace heddle::problem
