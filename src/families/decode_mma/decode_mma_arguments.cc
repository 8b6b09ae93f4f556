#include "families/decode_mma/decode_mma_arguments.h"

#include <fmt/format.h>

#include "backend/gpu/device_sequences.h"
#include "backend/portable/portable_arguments.h"
#include "families/decode_mma/decode_mma.h"
#include "families/decode_mma/decode_mma_shared_keys.h"
#include "families/decode_mma/shared/decode_mma_memory.h"
#include "heddle/error.h"

namespace heddle::decode_mma {

shared::DecodeMmaParams constant_params(const backend::PrepareArguments& arguments) {
  const problem::AttentionProblem& problem = arguments.problem;
  const auto& config = arguments.plan.part<shared::ForwardMmaConfig>();
  shared::DecodeMmaParams params{};
  portable::set_constants(arguments, params);
  params.sequences = static_cast<int>(problem.batch);
  params.heads = static_cast<int>(problem.q_heads);
  params.tiles = plan::decode_mma_tiles(problem, config);
  params.tiles_of_kv_head = params.tiles / static_cast<int>(problem.kv_heads);
  params.query_tiles = plan::decode_mma_query_tiles(problem, config);
  params.q_rows = static_cast<int>(problem.q_rows);
  params.q_packed = problem.packed;
  const int gangs = arguments.plan.grid / params.tiles;
  params.cut = shared::line_cut(static_cast<int>(plan::decode_mma_units(problem, config)), gangs);
  params.fresh_tokens = static_cast<int>(std::min<std::int64_t>(problem.fresh_tokens, 1 << 30));  // no one has more
  params.prefix_gangs = plan::shared_keys_gangs(config, arguments.plan.multiprocessors, params.tiles);
  if (problem.device_lengths) params.lengths = gpu::sequences_params(problem);
  return params;
}

void set_addresses(const shared::ForwardMmaConfig& config, const backend::RunArguments& arguments, int ctas,
                   shared::DecodeMmaParams& params) {
  portable::set_addresses(config, arguments, params);
  char* workspace = static_cast<char*>(arguments.workspace);
  const shared::DecodeMmaWorkspace at =
      shared::decode_mma_workspace(config, ctas, params.sequences, params.tiles, params.prefix_gangs);
  params.words = reinterpret_cast<shared::TicketWord*>(workspace);
  params.parts = workspace + at.parts;
  params.joined_words = reinterpret_cast<shared::TicketWord*>(workspace + at.joined_words);
  params.joined_rows = reinterpret_cast<float*>(workspace + at.joined_rows);
  params.prefix_parts = reinterpret_cast<float*>(workspace + at.prefix_parts);
  params.prefix_rows = reinterpret_cast<float*>(workspace + at.prefix_rows);
  params.prefix_spans = reinterpret_cast<shared::PrefixSpan*>(workspace + at.prefix_spans);
  const void *k = arguments.tensors.k.data, *v = arguments.tensors.v.data;
  if (config.wide() && k != v) {
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("v is at {}, and k at {}; the kernel was planned for values that are the first columns of the "
                    "keys, at one address (plan for such tensors as these)",
                    v, k));
  }
  if (config.converts()) params.descales = portable::descales_of(*arguments.options);
  if (config.device_lengths) gpu::set_lengths(*arguments.options, params.lengths);
  if (config.prefixed() && config.device_lengths) {
    params.prefix_group = gpu::lengths_view(arguments.options->prefix_group);
    params.prefix_len = gpu::lengths_view(arguments.options->prefix_len);
  }
}

void set_box_numbers(const shared::ForwardMmaConfig& config, const ConstTensorView& k,
                     shared::DecodeMmaBoxParams& params) {
  params.longest = static_cast<int>(config.page_rows > 0 ? config.page_rows : k.shape[2]);
  params.batch_step = params.k.stride[0] != 0 ? 1 : 0;
}

}  // namespace heddle::decode_mma
