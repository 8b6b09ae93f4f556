#include "backend/portable/portable_arguments.h"

#include <tuple>

#include "backend/gpu/page_tables.h"
#include "backend/gpu/row_tensors.h"
#include "backend/gpu/sequence_spans.h"

namespace heddle::portable {

void set_constants(const backend::PrepareArguments& arguments, shared::ForwardParams& params) {
  const problem::AttentionProblem& problem = arguments.problem;
  const AttentionTensors& tensors = arguments.tensors;
  const bool paged = problem.page_rows > 0;
  gpu::set_strides(tensors.q, problem.packed, params.q);
  gpu::set_strides(tensors.k, problem.packed && !paged, params.k);
  gpu::set_strides(tensors.v, problem.packed && !paged, params.v);
  gpu::set_strides(arguments.options.q_rest, problem.packed, params.q_rest);
  gpu::set_strides(arguments.options.k_rest, problem.packed && !paged, params.k_rest);
  if (paged) params.table = gpu::planned_table(problem, arguments.options, tensors.k.shape[0]);
  params.group = static_cast<int>(problem.group());
  params.scale = problem.scale * arguments.plan.mods.factor;
  params.scale32 = static_cast<float>(params.scale);
  for (int axis = 0; axis < 3; ++axis) {
    params.outputs.o_stride[axis] = tensors.o.strides[axis];
    if (tensors.lse) params.outputs.lse_stride[axis] = tensors.lse->strides[axis];
    if (tensors.lse_rest) params.lse_rest.stride[axis] = tensors.lse_rest->strides[axis];
    if (tensors.max_scores) params.max_scores.stride[axis] = tensors.max_scores->strides[axis];
  }
  if (problem.packed) {
    params.outputs.o_stride[0] = params.outputs.lse_stride[0] = 0;
    params.lse_rest.stride[0] = params.max_scores.stride[0] = 0;
  }
  params.mod.q_len = gpu::longest(problem, &Sequence::q_len);
  params.mod.kv_len = gpu::longest(problem, &Sequence::kv_len);
  if (!problem.sequences.empty()) params.mod.q_start = static_cast<int>(problem.sequences.front().q_start);
  if (problem.with_sinks) params.sinks.stride = arguments.options.sinks->strides[0];
}

void set_addresses(const shared::ForwardMmaConfig& config, const backend::RunArguments& arguments,
                   shared::ForwardParams& params) {
  const AttentionTensors& tensors = arguments.tensors;
  gpu::check_address("q", tensors.q.data, config.q_bytes);
  gpu::check_address("k", tensors.k.data, config.kv_bytes);
  gpu::check_address("v", tensors.v.data, config.kv_bytes);
  gpu::check_address("o", tensors.o.data, config.o_bytes);
  params.q.data = tensors.q.data;
  params.k.data = tensors.k.data;
  params.v.data = tensors.v.data;
  for (const auto& [name, rest, bytes, to] :
       {std::tuple("q_rest", &arguments.options->q_rest, config.q_bytes, &params.q_rest),
        {"k_rest", &arguments.options->k_rest, config.kv_bytes, &params.k_rest}}) {
    if (!*rest) continue;
    gpu::check_address(name, (*rest)->data, bytes);
    to->data = (*rest)->data;
  }
  params.outputs.o = tensors.o.data;
  if (tensors.lse) params.outputs.lse = static_cast<float*>(tensors.lse->data);
  if (tensors.lse_rest) params.lse_rest.data = static_cast<float*>(tensors.lse_rest->data);
  if (tensors.max_scores) params.max_scores.data = static_cast<float*>(tensors.max_scores->data);
  if (config.sinks) params.sinks.data = static_cast<const float*>(arguments.options->sinks->data);
  if (config.page_rows > 0) gpu::set_table(*arguments.options, params.table);
}

shared::Descales descales_of(const AttentionOptions& options) {
  return {gpu::descale_of(options.q_descale), gpu::descale_of(options.k_descale), gpu::descale_of(options.v_descale)};
}

}  // namespace heddle::portable
