#include "backend/backward_mma/params.h"

#include <algorithm>
#include <numbers>
#include <optional>
#include <string_view>

#include "backend/forward_mma/params.h"
#include "plan/families/backward_mma.h"
#include "plan/mods/backward_mods.h"

namespace heddle::backward_mma {
namespace {

using problem::AttentionProblem;
using shared::BackwardMmaConfig;

/// Element strides of batch, head and row. What has one entry serves all; the sequences of a packed tensor begin at
/// rows of their own.
template <class View, class Rows>
void set_strides(const View& view, bool packed, Rows& rows) {
  for (int axis = 0; axis < 3; ++axis) rows.stride[axis] = view.strides[axis];
  if (packed || view.shape[0] == 1) rows.stride[0] = 0;
}
template <class View, class Rows>
void set_strides(const std::optional<View>& view, bool packed, Rows& rows) {
  if (view) set_strides(*view, packed, rows);
}
void* address_of(const std::optional<TensorView>& view) { return view ? view->data : nullptr; }
const void* address_of(const std::optional<ConstTensorView>& view) { return view ? view->data : nullptr; }

shared::BackwardMmaParams params_of_pass(const backend::PrepareArguments& arguments, const BackwardMmaConfig& pass) {
  const AttentionProblem& problem = arguments.problem;
  const BackwardTensors& tensors = *arguments.backward;
  shared::BackwardMmaParams params{};
  const auto set_pair = [&](shared::RowsOfTensor(&pair)[2], const ConstTensorView& of_scores,
                            const ConstTensorView& of_values) {
    set_strides(of_scores, problem.packed, pair[0]);
    set_strides(of_values, problem.packed, pair[1]);
  };
  set_pair(pass.of_keys ? params.steps : params.rows, tensors.q, tensors.d_o);
  set_pair(pass.of_keys ? params.rows : params.steps, tensors.k, tensors.v);
  params.group = static_cast<int>(problem.group());
  params.q_heads = static_cast<int>(problem.q_heads);
  params.padded_blocks = problem.packed ? -1 : shared::blocks_of_rows(static_cast<int>(problem.q_rows));
  params.padded_rows = problem.packed ? 0 : static_cast<int>(pass.of_keys ? problem.kv_rows : problem.q_rows);
  const double scale = problem.scale * plan::backward_mods(problem).factor;
  params.scale = static_cast<float>(scale);
  params.scale_log2 =
      static_cast<float>(scale * (pass.normalizer == shared::Normalizer::none ? 1 : std::numbers::log2e));
  for (const Sequence& sequence : problem.sequences) {
    params.mod.q_len = std::max(params.mod.q_len, static_cast<int>(sequence.q_len));
    params.mod.kv_len = std::max(params.mod.kv_len, static_cast<int>(sequence.kv_len));
  }
  if (!problem.sequences.empty()) params.mod.q_start = static_cast<int>(problem.sequences.front().q_start);
  set_strides(pass.of_keys ? tensors.dk : tensors.dq, problem.packed, params.d_qk);
  set_strides(tensors.dv, problem.packed, params.d_v);
  return params;
}

void check_pass(const BackwardMmaConfig& pass, const BackwardTensors& tensors) {
  const int of_queries = pass.of_keys ? pass.step_bytes : pass.row_bytes,
            of_keys = pass.of_keys ? pass.row_bytes : pass.step_bytes;
  forward_mma::check_address("q", tensors.q.data, of_queries);
  forward_mma::check_address("dO", tensors.d_o.data, of_queries);
  forward_mma::check_address("k", tensors.k.data, of_keys);
  forward_mma::check_address("v", tensors.v.data, of_keys);
  const auto check = [&](std::string_view name, bool there, const std::optional<TensorView>& view) {
    if (there) forward_mma::check_address(name, view->data, pass.gradient_bytes);
  };
  check("dq", !pass.of_keys, tensors.dq);
  check("dk", pass.of_keys && pass.d_qk, tensors.dk);
  check("dv", pass.d_v, tensors.dv);
}

}  // namespace

Params constant_params(const backend::PrepareArguments& arguments) {
  const AttentionProblem& problem = arguments.problem;
  const BackwardTensors& tensors = *arguments.backward;
  Params params;
  for (const BackwardMmaConfig& pass : arguments.plan.backward_mma->passes) {
    params.passes.push_back(params_of_pass(arguments, pass));
  }
  shared::BackwardRowsParams& rows = params.rows;
  rows.q_heads = static_cast<int>(problem.q_heads);
  set_strides(tensors.o, problem.packed, rows.o);
  set_strides(tensors.d_o, problem.packed, rows.d_o);
  set_strides(tensors.lse, problem.packed, rows.lse);
  set_strides(tensors.d_lse, problem.packed, rows.d_lse);
  set_strides(tensors.lse_rest, problem.packed, rows.lse_rest);
  // Products themselves are compared where scores are plain; else t.
  rows.unit = 1;
  if (plan::backward_mods(problem).form == shared::ScoreForm::plain) {
    rows.unit = static_cast<float>(problem.scale * plan::backward_mods(problem).factor);
  }
  if (tensors.d_sinks) rows.d_sinks.stride[0] = tensors.d_sinks->strides[0];
  if (arguments.options.sinks) rows.sinks.stride = arguments.options.sinks->strides[0];
  return params;
}

void set_addresses(const plan::BackwardMmaKernels& kernels, const AttentionProblem& problem,
                   const backend::RunArguments& arguments, Params& params) {
  const BackwardTensors& tensors = *arguments.backward;
  for (const BackwardMmaConfig& pass : kernels.passes) check_pass(pass, tensors);
  const plan::BackwardMmaWorkspace at = plan::backward_mma_workspace(problem, kernels);
  char* workspace = static_cast<char*>(arguments.workspace);
  shared::BackwardRowsParams& rows = params.rows;
  rows.rows = reinterpret_cast<float*>(workspace + at.numbers);
  rows.sink_parts = reinterpret_cast<float*>(workspace + at.sinks);
  rows.o.data = tensors.o.data;
  rows.d_o.data = tensors.d_o.data;
  rows.lse.data = address_of(tensors.lse);
  rows.d_lse.data = address_of(tensors.d_lse);
  rows.lse_rest.data = address_of(tensors.lse_rest);
  rows.d_sinks.data = address_of(tensors.d_sinks);
  if (arguments.options->sinks) rows.sinks.data = static_cast<const float*>(arguments.options->sinks->data);
  for (std::size_t i = 0; i < params.passes.size(); ++i) {
    const bool of_keys = kernels.passes[i].of_keys;
    shared::BackwardMmaParams& pass = params.passes[i];
    shared::RowsOfTensor(&of_queries)[2] = of_keys ? pass.steps : pass.rows;
    shared::RowsOfTensor(&of_values)[2] = of_keys ? pass.rows : pass.steps;
    of_queries[0].data = tensors.q.data;
    of_queries[1].data = tensors.d_o.data;
    of_values[0].data = tensors.k.data;
    of_values[1].data = tensors.v.data;
    pass.numbers = rows.rows;
    pass.d_qk.data = address_of(of_keys ? tensors.dk : tensors.dq);
    pass.d_v.data = address_of(tensors.dv);
  }
}

}  // namespace heddle::backward_mma
