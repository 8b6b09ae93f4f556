#include "families/backward_mma/backward_mma_arguments.h"

#include <algorithm>
#include <numbers>
#include <optional>
#include <string_view>

#include "backend/gpu/backward_rows_params.h"
#include "backend/gpu/row_tensors.h"
#include "backend/gpu/sequence_spans.h"
#include "backend/portable/portable_arguments.h"
#include "families/backward_mma/backward_mma.h"
#include "plan/access/kernel_types.h"
#include "plan/mods/backward_mods.h"

namespace heddle::backward_mma {
namespace {

using problem::AttentionProblem;
using shared::BackwardMmaConfig;

shared::BackwardMmaParams params_of_pass(const backend::PrepareArguments& arguments, const BackwardMmaConfig& pass) {
  const AttentionProblem& problem = arguments.problem;
  const BackwardTensors tensors = plan::with_copies(problem, *arguments.backward);
  shared::BackwardMmaParams params{};
  const auto set_pair = [&](shared::RowsOfTensor(&pair)[2], const ConstTensorView& of_scores,
                            const ConstTensorView& of_values) {
    gpu::set_strides(of_scores, problem.packed, pair[0]);
    gpu::set_strides(of_values, problem.packed, pair[1]);
  };
  set_pair(pass.of_keys ? params.steps : params.rows, tensors.q, tensors.d_o);
  set_pair(pass.of_keys ? params.rows : params.steps, tensors.k, tensors.v);
  params.group = static_cast<int>(problem.group());
  params.q_heads = static_cast<int>(problem.q_heads);
  params.sequences = static_cast<int>(problem.batch);
  params.padded_blocks = problem.packed ? -1 : shared::blocks_of_rows(static_cast<int>(problem.q_rows));
  params.padded_rows = problem.packed ? 0 : static_cast<int>(pass.of_keys ? problem.kv_rows : problem.q_rows);
  const double scale = problem.scale * plan::backward_mods(problem).factor;
  const double unit = pass.normalizer == shared::Normalizer::none ? 1 : std::numbers::log2e;
  params.wide_scales = {.scale = scale, .scale_log2 = scale * unit, .score_scale = problem.scale};
  params.scales = {.scale = static_cast<float>(scale),
                   .scale_log2 = static_cast<float>(scale * unit),
                   .score_scale = static_cast<float>(problem.scale)};
  params.mod.q_len = gpu::longest(problem, &Sequence::q_len);
  params.mod.kv_len = gpu::longest(problem, &Sequence::kv_len);
  if (!problem.sequences.empty()) params.mod.q_start = static_cast<int>(problem.sequences.front().q_start);
  gpu::set_strides(pass.of_keys ? tensors.dk : tensors.dq, problem.packed, params.d_qk);
  gpu::set_strides(tensors.dv, problem.packed, params.d_v);
  return params;
}

void check_pass(const BackwardMmaConfig& pass, const BackwardTensors& tensors) {
  const int of_queries = pass.of_keys ? pass.step_bytes : pass.row_bytes,
            of_keys = pass.of_keys ? pass.row_bytes : pass.step_bytes;
  gpu::check_address("q", tensors.q.data, of_queries);
  gpu::check_address("dO", tensors.d_o.data, of_queries);
  gpu::check_address("k", tensors.k.data, of_keys);
  gpu::check_address("v", tensors.v.data, of_keys);
  const auto check = [&](std::string_view name, bool there, const std::optional<TensorView>& view) {
    if (there && !pass.finds_parts()) gpu::check_address(name, view->data, pass.gradient_bytes);
  };
  check("dq", !pass.of_keys && tensors.dq, tensors.dq);
  if (pass.adds_d_q) gpu::check_address("dq", tensors.dq->data, pass.d_q_bytes);
  check("dk", pass.of_keys && pass.d_qk, tensors.dk);
  check("dv", pass.d_v, tensors.dv);
}

/// All but addresses.
shared::MmaSumsParams sums_params(const plan::MmaReads& reads, const BackwardTensors& tensors,
                                  const plan::BackwardMmaWorkspace& at) {
  constexpr std::int64_t kMostCtas = 2048;
  shared::MmaSumsParams params{};
  params.words = (at.copies - at.sums) / 4;
  params.ctas = static_cast<int>(
      std::clamp<std::int64_t>((params.words + shared::kSumThreads - 1) / shared::kSumThreads, 1, kMostCtas));
  for (std::size_t i = 0; i < reads.sums.size(); ++i) {
    const plan::CaptureSum& sum = reads.sums[i];
    const TensorView& gradient = plan::gradient_of(sum, tensors);
    shared::MmaSumsParams::Stored& stored = params.stored[i];
    stored.count = sum.count;
    std::ranges::fill(stored.sum.extent, 1);
    for (int axis = 0; axis < sum.shape.size(); ++axis) {
      stored.sum.extent[axis] = static_cast<int>(sum.shape[axis]);
      stored.stride[axis] = gradient.strides[axis];
    }
    stored.sum.bits = reads.bits(i);
  }
  return params;
}

/// The copies of tensors of 8 bits, for the kernels that write and read them.
void set_copies(const plan::BackwardMmaKernels& kernels, const BackwardTensors& given, char* memory,
                BackwardTensors& tensors, shared::MmaWidenParams& params) {
  const ConstTensorView* from[] = {&given.q, &given.k, &given.v};
  ConstTensorView* to[] = {&tensors.q, &tensors.k, &tensors.v};
  for (std::size_t i = 0; i < 3; ++i) {
    if (kernels.copies.at[i] < 0) continue;
    to[i]->data = memory + kernels.copies.at[i];
    params.tensors[i].from = from[i]->data;
    params.tensors[i].to = memory + kernels.copies.at[i];
  }
}

}  // namespace

std::vector<shared::StorageType> types_of_sums(const plan::MmaReads& reads, const BackwardTensors& tensors) {
  std::vector<shared::StorageType> types;
  for (const plan::CaptureSum& sum : reads.sums)
    types.push_back(plan::storage_type_of(plan::gradient_of(sum, tensors).dtype));
  return types;
}

Params constant_params(const backend::PrepareArguments& arguments, const plan::MmaReads& reads) {
  Params params;
  const auto& kernels = arguments.plan.part<plan::BackwardMmaKernels>();
  for (const BackwardMmaConfig& pass : kernels.passes) {
    params.passes.push_back(params_of_pass(arguments, pass));
  }
  params.rows = gpu::backward_rows_params(arguments);
  if (plan::adds_queries(kernels)) {
    gpu::set_strides(arguments.backward->dq, arguments.problem.packed, params.rows.d_q_out);
    params.rows.d_q_scale = params.passes.front().scales.scale;
  }
  params.widen = plan::widen_params(arguments.problem, *arguments.backward);
  params.sums = sums_params(reads, *arguments.backward, plan::backward_mma_workspace(arguments.problem, kernels));
  return params;
}

void set_addresses(const plan::BackwardMmaKernels& kernels, const AttentionProblem& problem,
                   const plan::MmaReads& reads, const backend::RunArguments& arguments, Params& params) {
  BackwardTensors tensors = plan::with_copies(problem, *arguments.backward);
  const plan::BackwardMmaWorkspace at = plan::backward_mma_workspace(problem, kernels);
  char* workspace = static_cast<char*>(arguments.workspace);
  set_copies(kernels, *arguments.backward, workspace + at.copies, tensors, params.widen);
  for (const BackwardMmaConfig& pass : kernels.passes) check_pass(pass, tensors);
  gpu::check_address("o", tensors.o.data, kernels.rows.row_bytes);
  shared::BackwardRowsParams& rows = params.rows;
  rows.rows = reinterpret_cast<float*>(workspace + at.numbers);
  rows.sink_parts = reinterpret_cast<float*>(workspace + at.sinks);
  gpu::set_row_addresses(arguments, rows);
  if (plan::adds_queries(kernels)) {
    rows.d_q = params.passes.front().d_q = reinterpret_cast<float*>(workspace + at.d_q);
    rows.d_q_out.data = gpu::address_of(tensors.dq);
  }
  char *sum = workspace + at.sums, *integers = workspace + at.integers;
  params.sums.memory = reinterpret_cast<unsigned*>(sum);
  const int real = shared::real_bytes(kernels.rows.storage);
  for (std::size_t i = 0; i < reads.sums.size(); ++i) {
    shared::MmaSumsParams::Stored& stored = params.sums.stored[i];
    stored.data = plan::gradient_of(reads.sums[i], tensors).data;
    stored.sum.reals = sum;
    sum += stored.count * real;
    if (reads.ordered) {
      stored.sum.largest = reinterpret_cast<unsigned long long*>(workspace + at.largest) + i;
      stored.sum.integers = reinterpret_cast<unsigned long long*>(integers);
      integers += stored.count * shared::words_of_integers(real) * 8;
    }
    for (shared::BackwardMmaParams& pass : params.passes) pass.sums[i] = stored.sum;
  }
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
    pass.d_qk.data = gpu::address_of(of_keys ? tensors.dk : tensors.dq);
    pass.d_v.data = gpu::address_of(tensors.dv);
    if (kernels.passes[i].descaled) pass.descales = portable::descales_of(*arguments.options);
  }
}

void set_lists_to_read(const backend::RunArguments& arguments, const AttentionProblem& problem,
                       const plan::BackwardMmaKernels& kernels, gpu::BackwardSequencesParams& sequences,
                       Params& params) {
  char* memory = static_cast<char*>(arguments.workspace) + plan::backward_mma_workspace(problem, kernels).lists;
  gpu::set_lists_to_write(arguments, plan::backward_mma_lists(problem), memory, sequences);
  params.rows.blocks = sequences.lists.blocks;
  for (shared::BackwardMmaParams& pass : params.passes) pass.mod.sequences = sequences.lists.spans;
}

}  // namespace heddle::backward_mma
