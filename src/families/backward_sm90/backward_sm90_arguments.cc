#include "families/backward_sm90/backward_sm90_arguments.h"

#include <numbers>
#include <vector>

#include "backend/gpu/backward_rows_params.h"
#include "backend/gpu/row_tensors.h"
#include "backend/gpu/sequence_spans.h"
#include "families/backward_sm90/backward_sm90.h"
#include "families/backward_sm90/tile_shares.h"

namespace heddle::backward_sm90 {

using problem::AttentionProblem;
using shared::BackwardSm90Config;

device_text::ModLayout backward_layout(const plan::BackwardMods& mods, const plan::BackwardReads& reads) {
  std::vector<Expr> all = mods.all();
  for (const Expr& read : reads.all()) all.push_back(read);
  return device_text::layout_of(all);
}

gpu::BackwardSequencesParams backward_sequences_params(const AttentionProblem& problem,
                                                       const BackwardSm90Config& config,
                                                       const BackwardConstants& constants, std::int64_t blocks) {
  gpu::BackwardSequencesParams params = gpu::backward_sequences_params(problem, blocks);
  params.lists.items = constants.main.items;
  params.lists.item_count = constants.main.tiles;
  params.lists.runs = constants.main.runs;
  params.lists.tile_keys = config.keys();
  params.lists.keeps_all = config.ordered;
  return params;
}

void set_lists_to_read(const backend::RunArguments& arguments, const AttentionProblem& problem,
                       const BackwardSm90Config& config, gpu::BackwardSequencesParams& params,
                       BackwardConstants& constants) {
  char* memory = static_cast<char*>(arguments.workspace) + plan::backward_sm90_workspace(problem, config).lists;
  gpu::set_lists_to_write(arguments, plan::backward_lists_memory(problem, config), memory, params);
  constants.main.items = params.lists.left;
  constants.main.listed = params.lists.left_count;
  constants.main.mod.sequences = params.lists.spans;
  constants.rows.blocks = params.lists.blocks;
}

void set_ring(const plan::DqRingShape& shape, const backend::PrepareArguments& arguments,
              BackwardConstants& constants) {
  shared::DqRing& ring = constants.main.ring;
  ring.group = static_cast<int>(arguments.problem.group());
  gpu::set_strides(arguments.backward->dq, arguments.problem.packed, ring.d_q);
  constants.rows.ring_units = shape.ring_units();
  constants.rows.ring_counts = 2 * shape.sections;
}

BackwardConstants backward_constants(const backend::PrepareArguments& arguments) {
  const AttentionProblem& problem = arguments.problem;
  const BackwardTensors& tensors = *arguments.backward;
  const BackwardSm90Config& config = arguments.plan.part<shared::BackwardSm90Config>();
  BackwardConstants constants;
  shared::BackwardSm90Params& main = constants.main;
  main.tensors.q_len = gpu::longest(problem, &Sequence::q_len);
  main.tensors.kv_len = gpu::longest(problem, &Sequence::kv_len);
  const auto batched = [&](const ConstTensorView& view) { return view.shape[0] > 1 ? 1 : 0; };
  main.tensors.q_batched = batched(tensors.q);
  main.tensors.k_batched = batched(tensors.k);
  main.tensors.v_batched = batched(tensors.v);
  main.d_o_batched = batched(tensors.d_o);
  main.q_heads = static_cast<int>(problem.q_heads);
  main.padded_keys = problem.packed ? 0 : static_cast<int>(problem.kv_rows);
  const double factor = plan::backward_mods(problem).factor;
  const double unit = config.normalizer == shared::Normalizer::none ? 1 : std::numbers::log2e;
  main.scale = static_cast<float>(problem.scale * factor);
  main.scale_log2 = static_cast<float>(problem.scale * factor * unit);
  main.mod.q_len = main.tensors.q_len;
  main.mod.kv_len = main.tensors.kv_len;
  if (!problem.sequences.empty()) main.mod.q_start = static_cast<int>(problem.sequences.front().q_start);
  gpu::set_strides(tensors.dk, problem.packed, main.d_k);
  gpu::set_strides(tensors.dv, problem.packed, main.d_v);

  constants.rows = gpu::backward_rows_params(arguments);
  constants.rows.d_q_scale = main.scale;
  gpu::set_strides(tensors.dq, problem.packed, constants.rows.d_q_out);
  if (config.ring) set_ring(plan::d_q_ring_shape(problem, config), arguments, constants);
  return constants;
}

void set_shares(const shared::BackwardSm90Config& config, int places, void* memory, BackwardConstants& constants) {
  const plan::TileSharesMemory at = plan::tile_shares_memory(config, places);
  char* first = static_cast<char*>(memory);
  constants.main.shares = {reinterpret_cast<float*>(first + at.sums), reinterpret_cast<unsigned*>(first + at.counters)};
  constants.rows.share_counters = constants.main.shares.counters;
  constants.rows.share_counts = std::int64_t{places} * config.share_counters();
}

void set_addresses(const backend::RunArguments& arguments, const problem::AttentionProblem& problem,
                   const shared::BackwardSm90Config& config, BackwardConstants& constants) {
  const BackwardTensors& tensors = *arguments.backward;
  const plan::BackwardSm90Workspace at = plan::backward_sm90_workspace(problem, config);
  char* workspace = static_cast<char*>(arguments.workspace);
  shared::BackwardSm90Params& main = constants.main;
  shared::BackwardRowsParams& rows = constants.rows;
  rows.rows = reinterpret_cast<float*>(workspace + at.rows);
  rows.d_q = reinterpret_cast<float*>(workspace + at.d_q);
  rows.sink_parts = reinterpret_cast<float*>(workspace + at.sinks);
  rows.drawn = reinterpret_cast<unsigned*>(workspace + at.drawn);
  main.drawn = rows.drawn;
  rows.turns = main.turns = reinterpret_cast<unsigned*>(workspace + at.turns);
  rows.ring_counters = reinterpret_cast<unsigned*>(workspace + at.counters);
  main.ring.added = rows.ring_counters;
  main.ring.converted = rows.ring_counters + rows.ring_counts / 2;
  main.ring.d_q.data = gpu::address_of(tensors.dq);
  main.rows = rows.rows;
  main.d_q = rows.d_q;
  gpu::set_row_addresses(arguments, rows);
  rows.d_q_out.data = gpu::address_of(tensors.dq);
  main.d_k.data = gpu::address_of(tensors.dk);
  main.d_v.data = gpu::address_of(tensors.dv);
}

}  // namespace heddle::backward_sm90
