#include "backend/gpu/backward_sequences.h"

#include <optional>

#include "backend/gpu/device_sequences.h"

namespace heddle::gpu {
namespace {

shared::FilledRows filled(const std::optional<TensorView>& view) {
  if (!view) return {};
  const std::int64_t element = size_of(view->dtype);
  return {.data = static_cast<char*>(view->data),
          .stride = {view->strides[1] * element, view->strides[2] * element},
          .heads = static_cast<int>(view->shape[1]),
          .row_bytes = static_cast<int>(view->shape[3] * element)};
}

unsigned ctas_of(int threads) {
  return static_cast<unsigned>((threads + shared::kBackwardListThreads - 1) / shared::kBackwardListThreads);
}

}  // namespace

BackwardSequencesParams backward_sequences_params(const problem::AttentionProblem& problem, std::int64_t blocks) {
  BackwardSequencesParams params;
  params.sequences = sequences_params(problem);
  params.lists.count = params.sequences.count;
  params.lists.packed = problem.packed;
  params.lists.q_rows = params.sequences.q_rows;
  params.lists.kv_rows = params.sequences.kv_rows;
  params.lists.padded_blocks = problem.packed ? -1 : shared::blocks_of_rows(params.sequences.q_rows);
  params.lists.block_count = static_cast<int>(blocks);
  return params;
}

void set_lists_to_write(const backend::RunArguments& arguments, const shared::BackwardListsMemory& at, char* memory,
                        BackwardSequencesParams& params) {
  set_lengths(*arguments.options, params.sequences);
  params.sequences.spans = reinterpret_cast<shared::SequenceSpan*>(memory + at.spans);
  params.sequences.left_count = reinterpret_cast<int*>(memory + at.count);
  shared::BackwardListsParams& lists = params.lists;
  lists.spans = params.sequences.spans;
  lists.blocks = reinterpret_cast<shared::RowBlock*>(memory + at.blocks);
  lists.left = reinterpret_cast<shared::BackwardItem*>(memory + at.items);
  lists.left_count = params.sequences.left_count;
  lists.d_q = filled(arguments.backward->dq);
  lists.d_k = filled(arguments.backward->dk);
  lists.d_v = filled(arguments.backward->dv);
}

BackwardSequences::BackwardSequences(const Gpu& gpu, int device, const BackwardSequencesParams& params)
    : program_(gpu.load(device, gpu.source(device, "backward_lists", kBackwardListsText))),
      place_(program_->function("place_sequences")),
      blocks_(program_->function("list_backward_blocks")),
      tiles_(program_->function("list_backward_tiles")),
      gaps_(program_->function("fill_backward_gaps")),
      params_(params) {}

void BackwardSequences::launch(BackwardSequencesParams& params, void* stream) const {
  program_->launch(place_, {.ctas = 1, .threads = shared::kSpanThreads}, stream, &params.sequences,
                   "launching place_sequences");
  const auto launch = [&](void* kernel, unsigned ctas, const char* what) {
    const Launch of_lists = {.ctas = ctas, .threads = shared::kBackwardListThreads};
    if (ctas > 0) program_->launch(kernel, of_lists, stream, &params.lists, what);
  };
  const auto count = static_cast<unsigned>(params.lists.count);
  launch(blocks_, count, "launching list_backward_blocks");
  launch(tiles_, ctas_of(params.lists.item_count), "launching list_backward_tiles");
  if (params.lists.packed) launch(gaps_, count + 1, "launching fill_backward_gaps");
}

}  // namespace heddle::gpu
