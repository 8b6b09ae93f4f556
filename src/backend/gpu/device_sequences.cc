#include "backend/gpu/device_sequences.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>

#include "backend/gpu/page_tables.h"
#include "backend/gpu/texts.h"

namespace heddle::gpu {
namespace {

std::unique_ptr<Program> load_kernels(const Gpu& gpu, int device) {
  KernelText text = sequences_text();
  return gpu.load(device, gpu.source(device, std::move(text.name), std::move(text.text)));
}

}  // namespace

shared::LengthsView lengths_view(const std::optional<ConstTensorView>& view) {
  if (!view) return {};
  return {view->data, view->strides[0], view->dtype == DType::i64};
}

shared::SequencesParams sequences_params(const problem::AttentionProblem& problem) {
  const auto longest = [&](std::int64_t Sequence::*length) {
    return static_cast<int>(std::ranges::max(problem.sequences, {}, length).*length);
  };
  shared::SequencesParams params{};
  params.q_packed = problem.packed;
  params.kv_packed = problem.packed && problem.page_rows == 0;
  params.page_rows = static_cast<int>(problem.page_rows);
  params.count = static_cast<int>(problem.batch);
  params.q_rows = static_cast<int>(problem.q_rows);
  params.kv_rows = static_cast<int>(problem.kv_rows);
  params.max_q_len = longest(&Sequence::q_len);
  params.max_kv_len = longest(&Sequence::kv_len);
  return params;
}

void set_lengths(const AttentionOptions& options, shared::SequencesParams& params) {
  params.q = lengths_view(params.q_packed ? options.cu_seqlens_q : options.q_lengths);
  params.kv = lengths_view(params.kv_packed ? options.cu_seqlens_kv : options.kv_lengths);
  params.kv_used = params.kv_packed ? lengths_view(options.kv_lengths) : shared::LengthsView{};
  params.q_start = lengths_view(options.q_start);
  params.page_starts = page_starts_view(options);
}

std::vector<unsigned> steps_before(const std::vector<shared::KvRun>& runs) {
  std::vector<unsigned> sums = {0};
  for (const shared::KvRun& run : runs) sums.push_back(sums.back() + static_cast<unsigned>(run.end - run.begin));
  return sums;
}

DeviceSequences::DeviceSequences(const Gpu& gpu, int device, const problem::AttentionProblem& problem,
                                 const shared::TileShape& shape, const shared::TileList& tiles,
                                 const std::vector<unsigned>& steps)
    : program_(load_kernels(gpu, device)),
      place_(program_->function("place_sequences")),
      list_(program_->function("list_tiles")),
      place_and_list_(program_->function("place_and_list")),
      steps_before_(gpu.devices(), device, steps.size() * sizeof(unsigned)),
      memory_(shared::sequences_memory(problem.batch, tiles.item_count)) {
  gpu.devices().copy_and_wait(device, steps_before_.data(), steps.data(), steps.size() * sizeof(unsigned));
  params_ = sequences_params(problem);
  params_.items = tiles.items;
  params_.item_count = tiles.item_count;
  params_.runs = tiles.runs;
  params_.steps_before = static_cast<const unsigned*>(steps_before_.data());
  params_.kv_block = shape.kv_block;
  params_.tile_queries = shape.queries();
  params_.warpgroups = shape.warpgroups;
  params_.descending = shape.descending;
}

void DeviceSequences::launch(const AttentionOptions& options, void* workspace, void* stream, shared::TileList& tiles,
                             shared::ModValues& mod, shared::ListedTiles& listed) const {
  auto* memory = static_cast<char*>(workspace);
  shared::SequencesParams own = params_;
  set_lengths(options, own);
  own.spans = reinterpret_cast<shared::SequenceSpan*>(memory + memory_.spans);
  own.left = reinterpret_cast<shared::WorkItem*>(memory + memory_.items);
  own.left_count = reinterpret_cast<int*>(memory + memory_.count);
  const Launch one = {.ctas = 1, .threads = shared::kSpanThreads};
  if (own.item_count <= shared::kListedAtOnce) {
    program_->launch(place_and_list_, one, stream, &own, "launching place_and_list");
  } else {
    program_->launch(place_, one, stream, &own, "launching place_sequences");
    const int ctas = (own.item_count + shared::kListThreads - 1) / shared::kListThreads;
    const Launch launch = {.ctas = static_cast<unsigned>(ctas), .threads = shared::kListThreads};
    program_->launch(list_, launch, stream, &own, "launching list_tiles");
  }
  tiles.items = own.left;
  mod.sequences = own.spans;
  listed = {.item_count = own.left_count,
            .sequence_count = own.count,
            .q_heads = listed.q_heads,
            .q_rows = own.q_rows,
            .packed = own.q_packed};
}

}  // namespace heddle::gpu
