#include "families/forward_mma/forward_mma_candidates.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <functional>
#include <span>

#include "backend/portable/shared/forward_mma_memory.h"
#include "plan/tiles/packed_heads.h"
#include "plan/tiles/schedule.h"

namespace heddle::plan {
namespace {

using problem::AttentionProblem;
using shared::ForwardMmaConfig;
using shared::FragmentKind;

/// A kernel of the table: for head dims up to `most_dim`.
struct MmaKernel {
  int most_dim, row_waves, row_fragments, kv_block;
  bool shared_queries;
  int ctas;
};

// For each bound of head dims the best first. Chosen by registers and shared memory, not measured: two fragments of
// rows a warp halve what a warp reads of keys and values for each product.
/// f16, bf16.
constexpr MmaKernel kKernels[] = {
    {64, 4, 2, 64, false, 2}, {64, 4, 1, 64, false, 2}, {64, 4, 1, 32, false, 1}, {64, 4, 1, 16, false, 1},
    {128, 4, 2, 32, true, 2}, {128, 4, 1, 64, true, 2}, {128, 4, 1, 32, true, 1}, {128, 4, 1, 16, true, 1},
    {256, 4, 1, 32, true, 1}, {256, 4, 1, 16, true, 1},
};
constexpr MmaKernel kF32Kernels[] = {
    {64, 4, 2, 32, true, 1},  {64, 4, 1, 32, true, 1},  {64, 4, 1, 16, true, 1},
    {128, 4, 1, 32, true, 1}, {128, 4, 1, 16, true, 1}, {256, 4, 1, 16, true, 1},
};
constexpr MmaKernel kF64Kernels[] = {{64, 4, 1, 32, true, 1}, {64, 4, 1, 16, true, 1}, {128, 4, 1, 16, true, 1}};

/// f16 and bf16 by plain multiply-adds.
constexpr MmaKernel kPlainKernels[] = {
    {64, 4, 1, 32, true, 1},  {64, 4, 1, 16, true, 1},  {128, 4, 1, 32, true, 1},
    {128, 4, 1, 16, true, 1}, {256, 4, 1, 16, true, 1},
};
/// AMD's fragments of 16 rows; of 32 rows and 32 keys. By registers and LDS, counted with clang 19.
constexpr MmaKernel kWmmaKernels[] = {
    {64, 4, 1, 64, false, 1},  {64, 4, 1, 32, false, 1}, {64, 4, 1, 16, false, 1}, {128, 4, 1, 32, false, 1},
    {128, 4, 1, 16, false, 1}, {128, 4, 1, 16, true, 1}, {256, 4, 1, 16, true, 1},
};
constexpr MmaKernel kMfmaKernels[] = {
    {64, 2, 1, 64, false, 2},  {64, 2, 1, 32, false, 2},  {64, 2, 1, 32, false, 1},
    {128, 2, 1, 32, false, 2}, {128, 2, 1, 32, false, 1}, {256, 2, 1, 32, false, 1},
};

std::span<const MmaKernel> kernels_of(shared::Storage storage, FragmentKind fragments) {
  if (storage == shared::Storage::f64) return kF64Kernels;
  if (storage == shared::Storage::f32) return kF32Kernels;
  switch (shared::fragments_of(fragments).tables) {
    case FragmentKind::fma:
      return kPlainKernels;
    case FragmentKind::gfx11:
      return kWmmaKernels;
    case FragmentKind::gfx9:
      return kMfmaKernels;
    default:
      return kKernels;
  }
}

int power_of_two_from(std::int64_t x) {
  return static_cast<int>(std::bit_ceil(static_cast<std::uint64_t>(std::max<std::int64_t>(1, x))));
}

std::int64_t longest_queries(const AttentionProblem& problem) {
  std::int64_t longest = 0;
  for (const Sequence& sequence : problem.sequences) longest = std::max(longest, sequence.q_len);
  return longest;
}

/// Query heads that share a tile, if queries are so few that these heads' fit in 64 rows; 0: they are not few.
int packed_heads_of(const AttentionProblem& problem) {
  const std::int64_t longest = longest_queries(problem);
  if (longest == 0 || longest > 32) return 0;
  const int most = shared::kWarpgroupRows / power_of_two_from(longest);
  const int heads = std::min(power_of_two_from(problem.group()), most);
  return heads > 1 || longest <= 16 ? heads : 0;
}

/// Buffers of a ring of blocks: as many as leave room for two CTAs on a multiprocessor; if that is one, as many as one
/// CTA has room for. Elements at odd addresses come through registers, and nothing goes on beside the computing.
int stages_of(ForwardMmaConfig config, std::int64_t shared_memory_bytes) {
  constexpr int kMost = 4;
  if (!config.shape().ring || config.kv_bytes < 4) return 1;
  for (const int ctas : {2, 1}) {
    for (config.stages = kMost; config.stages > 1; --config.stages) {
      const int bytes = shared::forward_mma_memory(config).bytes;
      if (shared::resident_ctas(bytes, shared_memory_bytes) >= ctas) return config.stages;
    }
  }
  return 1;
}

/// The kernels for few queries of a kernel of the table: a tile of 16, 32 or 64 rows, one fragment at least. Up to 32
/// its waves share the keys of a step, a fragment each.
void set_few_queries(ForwardMmaConfig& config, int packed_heads, std::int64_t longest) {
  const std::int64_t rows = longest * packed_heads;
  config.packed_heads = packed_heads;
  config.row_fragments = 1;
  const int fragment = config.shape().rows;  // AMD's and NVIDIA's have as many keys
  const int tile = rows <= 16 ? 16 : rows <= 32 ? 32 : 64;
  config.row_waves = std::max(1, tile / fragment);
  config.key_waves = std::max(1, std::min(4 / config.row_waves, config.kv_block / fragment));
  if (!config.shape().states_waves) config.ctas = 1;
}

}  // namespace

std::vector<ForwardMmaConfig> forward_mma_configs(const AttentionProblem& problem, const KernelMods& mods,
                                                  const AttentionTensors& tensors, std::int64_t shared_memory_bytes,
                                                  MmaTarget target) {
  const ForwardMmaConfig all = forward_config(problem, mods, tensors, target);
  const int dim = std::max(all.qk_dim, all.v_dim), packed = packed_heads_of(problem);
  const int bound = dim <= 64 ? 64 : dim <= 128 ? 128 : 256;
  std::vector<ForwardMmaConfig> configs;
  const auto append = [&](FragmentKind fragments, bool few) {
    for (const MmaKernel& kernel : kernels_of(all.storage, fragments)) {
      if (kernel.most_dim != bound) continue;
      ForwardMmaConfig config = all;
      config.fragments = fragments;
      config.row_waves = kernel.row_waves;
      config.row_fragments = kernel.row_fragments;
      config.kv_block = kernel.kv_block;
      config.shared_queries = kernel.shared_queries;
      config.ctas = kernel.ctas;
      if (few) {
        set_few_queries(config, packed, longest_queries(problem));
        if (target.copies_beside) config.stages = stages_of(config, shared_memory_bytes);
      }
      if (std::ranges::find(configs, config) == configs.end()) configs.push_back(config);
    }
  };
  const auto append_all = [&](FragmentKind fragments) {
    const auto first = std::ssize(configs);
    if (packed > 0) append(fragments, true);
    // More keys a step occupy more waves.
    std::ranges::stable_sort(configs.begin() + first, configs.end(), std::greater<>(), &ForwardMmaConfig::kv_block);
    append(fragments, false);
  };
  append_all(all.fragments);
  if (all.shape().plain_follow) append_all(FragmentKind::fma);
  return configs;
}

std::string forward_mma_misfit(const ForwardMmaConfig& config, const AttentionProblem& problem,
                               std::int64_t shared_memory_bytes, const BlockMask* callers) {
  const std::int64_t last_key = std::int64_t{shared::kMaxKvBlocks} * config.kv_block;
  if (problem.kv_rows > last_key) return fmt::format("takes up to {} rows of k", last_key);
  const int bytes = shared::forward_mma_memory(config).bytes;
  if (bytes > shared_memory_bytes) {
    return fmt::format("needs {} bytes of shared memory of {}", bytes, shared_memory_bytes);
  }
  if (const std::int64_t tiles = count_tiles(problem, config.tile()); tiles > shared::kMaxTiles) {
    return fmt::format("queries make {} tiles; up to {} are accepted", tiles, shared::kMaxTiles);
  }
  if (callers == nullptr) return {};
  if (config.packs() && callers->is_from_lists() && !callers->shared_by_heads()) {
    return fmt::format("packs no {} heads into a tile, since the lists of block_mask are each head's own",
                       config.packed_heads);
  }
  const BlockSize block = callers->block();
  if (block.q % shared::kWarpgroupRows != 0) {
    return fmt::format("{} queries do not divide the {} of a block of block_mask", shared::kWarpgroupRows, block.q);
  }
  if (block.kv % config.kv_block != 0) {
    return fmt::format("{} keys do not divide the {} of a block of block_mask", config.kv_block, block.kv);
  }
  return {};
}

std::vector<Setting> forward_mma_settings(const ForwardMmaConfig& config) {
  std::vector<Setting> settings = settings_of(config, {"fragments", "storage"});
  settings.push_back({"shared_memory_bytes", shared::forward_mma_memory(config).bytes});
  return settings;
}

}  // namespace heddle::plan
