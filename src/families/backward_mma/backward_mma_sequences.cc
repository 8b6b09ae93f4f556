#include "families/backward_mma/backward_mma_sequences.h"

#include <optional>

#include "backend/gpu/sequences.h"
#include "families/backward_mma/backward_mma_plans.h"

namespace heddle::backward_mma {
namespace {

constexpr const char* kText = "#include \"around/sequences.cuh\"\n#include \"around/backward_lists.cuh\"\n";

shared::FilledRows filled(const std::optional<TensorView>& view) {
  if (!view) return {};
  const std::int64_t element = size_of(view->dtype);
  return {.data = static_cast<char*>(view->data),
          .stride = {view->strides[1] * element, view->strides[2] * element},
          .heads = static_cast<int>(view->shape[1]),
          .row_bytes = static_cast<int>(view->shape[3] * element)};
}

}  // namespace

SequencesParams sequences_params(const problem::AttentionProblem& problem, std::int64_t blocks) {
  SequencesParams params;
  params.sequences = gpu::sequences_params(problem);
  params.lists.count = params.sequences.count;
  params.lists.packed = problem.packed;
  params.lists.q_rows = params.sequences.q_rows;
  params.lists.kv_rows = params.sequences.kv_rows;
  params.lists.padded_blocks = problem.packed ? -1 : shared::blocks_of_rows(params.sequences.q_rows);
  params.lists.block_count = static_cast<int>(blocks);
  return params;
}

void set_lists(const backend::RunArguments& arguments, const problem::AttentionProblem& problem,
               const plan::BackwardMmaKernels& kernels, SequencesParams& own, Params& params) {
  const shared::BackwardListsMemory at = plan::backward_mma_lists(problem);
  char* memory = static_cast<char*>(arguments.workspace) + plan::backward_mma_workspace(problem, kernels).lists;
  gpu::set_lengths(*arguments.options, own.sequences);
  own.sequences.spans = reinterpret_cast<shared::SequenceSpan*>(memory + at.spans);
  own.sequences.left_count = reinterpret_cast<int*>(memory + at.count);
  own.lists.spans = own.sequences.spans;
  own.lists.blocks = reinterpret_cast<shared::RowBlock*>(memory + at.blocks);
  own.lists.d_q = filled(arguments.backward->dq);
  own.lists.d_k = filled(arguments.backward->dk);
  own.lists.d_v = filled(arguments.backward->dv);
  params.rows.blocks = own.lists.blocks;
  for (shared::BackwardMmaParams& pass : params.passes) pass.mod.sequences = own.lists.spans;
}

Sequences::Sequences(const gpu::Gpu& gpu, int device, const SequencesParams& params)
    : program_(gpu.load(device, gpu.source(device, "backward_lists", kText))),
      place_(program_->function("place_sequences")),
      blocks_(program_->function("list_backward_blocks")),
      gaps_(program_->function("fill_backward_gaps")),
      params_(params) {}

void Sequences::launch(SequencesParams& params, void* stream) const {
  program_->launch(place_, {.ctas = 1, .threads = shared::kSpanThreads}, stream, &params.sequences,
                   "launching place_sequences");
  const auto count = static_cast<unsigned>(params.lists.count);
  program_->launch(blocks_, {.ctas = count, .threads = shared::kBackwardListThreads}, stream, &params.lists,
                   "launching list_backward_blocks");
  if (!params.lists.packed) return;
  program_->launch(gaps_, {.ctas = count + 1, .threads = shared::kBackwardListThreads}, stream, &params.lists,
                   "launching fill_backward_gaps");
}

}  // namespace heddle::backward_mma
