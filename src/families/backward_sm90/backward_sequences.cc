#include "families/backward_sm90/backward_sequences.h"

#include <optional>

#include "backend/gpu/sequences.h"
#include "families/backward_sm90/backward_sm90_plans.h"
#include "families/backward_sm90/backward_sm90_text.h"

namespace heddle::cuda {
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

BackwardSequencesParams backward_sequences_params(const problem::AttentionProblem& problem,
                                                  const shared::BackwardSm90Config& config,
                                                  const BackwardConstants& constants, std::int64_t tiles,
                                                  std::int64_t blocks) {
  BackwardSequencesParams params;
  params.sequences = gpu::sequences_params(problem);
  params.lists.count = params.sequences.count;
  params.lists.packed = problem.packed;
  params.lists.q_rows = params.sequences.q_rows;
  params.lists.kv_rows = params.sequences.kv_rows;
  params.lists.padded_blocks = problem.packed ? -1 : shared::blocks_of_rows(params.sequences.q_rows);
  params.lists.block_count = static_cast<int>(blocks);
  params.lists.items = constants.main.items;
  params.lists.item_count = static_cast<int>(tiles);
  params.lists.runs = constants.main.runs;
  params.lists.tile_keys = config.keys();
  params.lists.keeps_places = config.ordered;
  return params;
}

void set_backward_lists(const backend::RunArguments& arguments, const problem::AttentionProblem& problem,
                        const shared::BackwardSm90Config& config, BackwardSequencesParams& params,
                        BackwardConstants& constants) {
  const shared::BackwardListsMemory at = plan::backward_lists_memory(problem, config);
  char* memory = static_cast<char*>(arguments.workspace) + plan::backward_sm90_workspace(problem, config).lists;
  gpu::set_lengths(*arguments.options, params.sequences);
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
  constants.main.items = lists.left;
  constants.main.listed = lists.left_count;
  constants.main.mod.sequences = lists.spans;
  constants.rows.blocks = lists.blocks;
}

BackwardSequences::BackwardSequences(int device, const BackwardSequencesParams& params)
    : cubin_(jit::build(emit::backward_lists())),
      module_(device, cubin_->bytes, jit::compiler_number()),
      place_(module_.function("place_sequences", 0)),
      blocks_(module_.function("list_backward_blocks", 0)),
      tiles_(module_.function("list_backward_tiles", 0)),
      gaps_(module_.function("fill_backward_gaps", 0)),
      params_(params) {}

void BackwardSequences::launch(BackwardSequencesParams& params, void* stream) const {
  void* of_place[] = {&params.sequences};
  launch_kernel(place_, {.ctas = 1, .threads = shared::kSpanThreads}, stream, of_place, "launching place_sequences");
  void* of_lists[] = {&params.lists};
  const auto launch = [&](CUfunction kernel, unsigned ctas, const char* what) {
    if (ctas > 0)
      launch_kernel(kernel, {.ctas = ctas, .threads = shared::kBackwardListThreads}, stream, of_lists, what);
  };
  const auto count = static_cast<unsigned>(params.lists.count);
  launch(blocks_, count, "launching list_backward_blocks");
  launch(tiles_, ctas_of(params.lists.item_count), "launching list_backward_tiles");
  if (params.lists.packed) launch(gaps_, count + 1, "launching fill_backward_gaps");
}

}  // namespace heddle::cuda
