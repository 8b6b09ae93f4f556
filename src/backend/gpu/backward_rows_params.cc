#include "backend/gpu/backward_rows_params.h"

#include "backend/gpu/row_tensors.h"
#include "plan/mods/backward_mods.h"

namespace heddle::gpu {

shared::BackwardRowsParams backward_rows_params(const backend::PrepareArguments& arguments) {
  const problem::AttentionProblem& problem = arguments.problem;
  const BackwardTensors& tensors = *arguments.backward;
  shared::BackwardRowsParams rows{};
  rows.q_heads = static_cast<int>(problem.q_heads);
  set_strides(tensors.o, problem.packed, rows.o);
  set_strides(tensors.d_o, problem.packed, rows.d_o);
  set_strides(tensors.lse, problem.packed, rows.lse);
  set_strides(tensors.d_lse, problem.packed, rows.d_lse);
  set_strides(tensors.lse_rest, problem.packed, rows.lse_rest);
  // Products themselves are compared where scores are plain; else t.
  const plan::BackwardMods mods = plan::backward_mods(problem);
  rows.unit_f64 = mods.form == shared::ScoreForm::plain ? problem.scale * mods.factor : 1;
  rows.unit = static_cast<float>(rows.unit_f64);
  if (tensors.d_sinks) rows.d_sinks.stride[0] = tensors.d_sinks->strides[0];
  if (arguments.options.sinks) rows.sinks.stride = arguments.options.sinks->strides[0];
  return rows;
}

void set_row_addresses(const backend::RunArguments& arguments, shared::BackwardRowsParams& rows) {
  const BackwardTensors& tensors = *arguments.backward;
  rows.o.data = tensors.o.data;
  rows.d_o.data = tensors.d_o.data;
  rows.lse.data = address_of(tensors.lse);
  rows.d_lse.data = address_of(tensors.d_lse);
  rows.lse_rest.data = address_of(tensors.lse_rest);
  rows.d_sinks.data = address_of(tensors.d_sinks);
  if (arguments.options->sinks) rows.sinks.data = static_cast<const float*>(arguments.options->sinks->data);
}

}  // namespace heddle::gpu
