#include "backend/forward_mma/params.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "heddle/error.h"

namespace heddle::forward_mma {
namespace {

int longest(const problem::AttentionProblem& problem, std::int64_t Sequence::* length) {
  std::int64_t most = 0;
  for (const Sequence& sequence : problem.sequences) most = std::max(most, sequence.*length);
  return static_cast<int>(most);
}

/// Rows of q, k or v. What has one entry serves all; the sequences of a packed tensor begin at rows of their own.
shared::RowsOfTensor rows_of(const ConstTensorView& view, bool packed) {
  shared::RowsOfTensor rows{};
  for (int axis = 0; axis < 3; ++axis) rows.stride[axis] = view.strides[axis];
  if (packed || view.shape[0] == 1) rows.stride[0] = 0;
  return rows;
}

}  // namespace

void check_address(std::string_view name, const void* address, int bytes) {
  if (reinterpret_cast<std::uintptr_t>(address) % static_cast<std::uintptr_t>(bytes) == 0) return;
  throw Error(ErrorCode::invalid_argument,
              fmt::format("{} is at address {}; a multiple of {}, as the planned one had it, is accepted", name,
                          address, bytes));
}

shared::ForwardMmaParams constant_params(const backend::PrepareArguments& arguments) {
  const problem::AttentionProblem& problem = arguments.problem;
  const AttentionTensors& tensors = arguments.tensors;
  shared::ForwardMmaParams params{};
  const bool paged = problem.page_rows > 0;
  params.q = rows_of(tensors.q, problem.packed);
  params.k = rows_of(tensors.k, problem.packed && !paged);
  params.v = rows_of(tensors.v, problem.packed && !paged);
  if (paged) {
    const ConstTensorView& table = *arguments.options.page_table;
    params.table = {
        .data = nullptr, .stride = {table.strides[0], table.strides[1]}, .pages = static_cast<int>(tensors.k.shape[0])};
  }
  params.group = static_cast<int>(problem.group());
  params.scale = problem.scale * arguments.plan.mods.factor;
  params.scale32 = static_cast<float>(params.scale);
  for (int axis = 0; axis < 3; ++axis) {
    params.outputs.o_stride[axis] = tensors.o.strides[axis];
    if (tensors.lse) params.outputs.lse_stride[axis] = tensors.lse->strides[axis];
    if (tensors.lse_rest) params.lse_rest.stride[axis] = tensors.lse_rest->strides[axis];
  }
  if (problem.packed) params.outputs.o_stride[0] = params.outputs.lse_stride[0] = params.lse_rest.stride[0] = 0;
  params.mod.q_len = longest(problem, &Sequence::q_len);
  params.mod.kv_len = longest(problem, &Sequence::kv_len);
  if (!problem.sequences.empty()) params.mod.q_start = static_cast<int>(problem.sequences.front().q_start);
  if (problem.with_sinks) params.sinks.stride = arguments.options.sinks->strides[0];
  params.listed.q_heads = static_cast<int>(problem.q_heads);
  return params;
}

std::vector<shared::SequenceSpan> spans_of(const problem::AttentionProblem& problem) {
  std::vector<shared::SequenceSpan> spans;
  for (const Sequence& sequence : problem.sequences) {
    shared::SequenceSpan span{};
    span.q_begin = static_cast<int>(sequence.q_begin);
    span.q_len = static_cast<int>(sequence.q_len);
    span.kv_len = static_cast<int>(sequence.kv_len);
    span.q_start = static_cast<int>(sequence.q_start);
    span.kv_begin = static_cast<int>(sequence.kv_begin);
    span.kv_end = static_cast<int>(sequence.kv_begin + sequence.kv_len);
    span.q_end = static_cast<int>(sequence.q_begin + sequence.q_len);
    spans.push_back(span);
  }
  return spans;
}

void set_addresses(const shared::ForwardMmaConfig& config, const backend::RunArguments& arguments,
                   shared::ForwardMmaParams& params) {
  const AttentionTensors& tensors = arguments.tensors;
  check_address("q", tensors.q.data, config.q_bytes);
  check_address("k", tensors.k.data, config.kv_bytes);
  check_address("v", tensors.v.data, config.kv_bytes);
  check_address("o", tensors.o.data, config.o_bytes);
  params.q.data = tensors.q.data;
  params.k.data = tensors.k.data;
  params.v.data = tensors.v.data;
  params.outputs.o = tensors.o.data;
  if (tensors.lse) params.outputs.lse = static_cast<float*>(tensors.lse->data);
  if (tensors.lse_rest) params.lse_rest.data = static_cast<float*>(tensors.lse_rest->data);
  if (config.sinks) params.sinks.data = static_cast<const float*>(arguments.options->sinks->data);
  if (config.page_rows > 0) params.table.data = static_cast<const int*>(arguments.options->page_table->data);
}

}  // namespace heddle::forward_mma
