#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <functional>
#include <span>

#include "backend/portable/portable_refuses.h"
#include "backend/portable/shared/forward_mma_config.h"
#include "families/forward_mma/forward_mma.h"
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
  int ctas, key_waves = 1;
  bool of_many_rows = false;  // no kernel of few queries is made of it
};

// For each bound of head dims the best first. Two fragments of rows a warp halve what a warp reads of keys and values
// for each product.
/// f16, bf16. On an H100 the first ones to 64 and 128 take 0.91 and 0.83 of the time of the next ones.
constexpr MmaKernel kKernels[] = {
    {64, 4, 2, 128, true, 2, 1, true}, {64, 4, 2, 64, false, 2}, {64, 4, 1, 64, false, 2},
    {64, 4, 1, 32, false, 1},          {64, 4, 1, 16, false, 1}, {128, 4, 2, 64, true, 2, 1, true},
    {128, 4, 2, 32, true, 2},          {128, 4, 1, 64, true, 2}, {128, 4, 1, 32, true, 1},
    {128, 4, 1, 16, true, 1},          {256, 4, 1, 32, true, 1}, {256, 4, 1, 16, true, 1},
};
constexpr MmaKernel kF32Kernels[] = {
    {64, 4, 2, 32, true, 1},  {64, 4, 1, 32, true, 1},  {64, 4, 1, 16, true, 1},
    {128, 4, 1, 32, true, 1}, {128, 4, 1, 16, true, 1}, {256, 4, 1, 16, true, 1},
};
/// f32 as outer products, many rows: in the order that they have on an H100. At D 128 queries take half of the shared
/// memory of a CTA; two CTAs of four waves are faster there than one whose waves share the keys of a step.
constexpr MmaKernel kOuterKernels[] = {
    {64, 4, 2, 64, true, 2},  {64, 4, 2, 128, true, 2},    {64, 4, 2, 32, true, 3},
    {64, 4, 1, 32, true, 2},  {128, 4, 2, 32, true, 2},    {128, 4, 2, 64, true, 1, 2},
    {128, 4, 1, 32, true, 1}, {256, 4, 1, 64, true, 1, 2}, {256, 4, 1, 32, true, 1},
};
/// f32 by products of tf32, many rows: likewise.
constexpr MmaKernel kTf32Kernels[] = {
    {64, 4, 2, 64, true, 2},  {64, 4, 1, 64, true, 2},  {64, 4, 1, 32, true, 2},  {128, 4, 2, 32, true, 2},
    {128, 8, 1, 64, true, 1}, {128, 4, 1, 32, true, 1}, {256, 4, 1, 32, true, 1}, {256, 4, 1, 16, true, 1},
};
/// f64 by tensor cores: by registers, shared memory and its loads for each product, not measured. At D 128 few queries
/// whose waves share 32 keys of a step spill 16 bytes on sm_80.
constexpr MmaKernel kDmmaKernels[] = {
    {64, 4, 1, 64, true, 2},           {64, 4, 1, 32, true, 2},  {64, 4, 1, 16, true, 2},
    {128, 8, 1, 32, true, 1, 1, true}, {128, 8, 1, 16, true, 1}, {128, 4, 1, 32, true, 1, 1, true},
    {128, 4, 1, 16, true, 1},
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
  if (fragments == FragmentKind::dmma) return kDmmaKernels;
  if (storage == shared::Storage::f64) return kF64Kernels;
  if (fragments == FragmentKind::outer) return kOuterKernels;
  if (fragments == FragmentKind::tf32) return kTf32Kernels;
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

constexpr std::int64_t kMostFewQueries = 32;

/// Query heads that share a tile, if queries are so few that these heads' fit in 64 rows; 0: they are not few.
int packed_heads_of(const AttentionProblem& problem) {
  const std::int64_t longest = forward_mma_longest_queries(problem);
  if (longest == 0 || longest > kMostFewQueries) return 0;
  if (problem.batch_invariant) {
    // Tiles of 16 rows for up to 16 queries, whichever there are of others.
    return longest > 16 ? 0 : std::min(power_of_two_from(problem.group()), 16 / power_of_two_from(longest));
  }
  const int most = shared::kWarpgroupRows / power_of_two_from(longest);
  const int heads = std::min(power_of_two_from(problem.group()), most);
  return heads > 1 || longest <= 16 ? heads : 0;
}

/// The next smaller number of heads, after packed_heads_of(); 0: there is none. With batch_invariant the number stays.
int fewer_heads_than(int packed_heads, const AttentionProblem& problem) {
  const std::int64_t longest = forward_mma_longest_queries(problem);
  if (problem.batch_invariant || longest == 0 || longest > kMostFewQueries) return 0;
  return packed_heads > 0 ? packed_heads / 2 : 1;
}

/// Buffers of a ring of blocks: the most that leave room for two CTAs on a multiprocessor. If that is one buffer, the
/// most that one CTA has room for. Elements at odd addresses come through registers, without copies beside the
/// computing.
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

/// Among kernels made for more than one CTA on a multiprocessor, those that reach the number that registers allow go
/// before those that shared memory limits to fewer.
void put_residents_first(std::span<ForwardMmaConfig> configs, std::int64_t shared_memory_bytes) {
  const auto alone = std::ranges::find_if(configs, [](const ForwardMmaConfig& config) { return config.ctas < 2; });
  std::stable_partition(configs.begin(), alone, [&](const ForwardMmaConfig& config) {
    return shared::resident_ctas(shared::forward_mma_memory(config).bytes, shared_memory_bytes) >= config.ctas;
  });
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

/// Rows of a tile for the caller's mask, where 64 do not divide the rows of its blocks, but 32 or 16; else 0.
int small_block_rows(const AttentionOptions& options) {
  if (options.block_mask == nullptr) return 0;
  const std::int64_t rows = options.block_mask->block().q;
  return rows % shared::kWarpgroupRows == 0 ? 0 : rows % 32 == 0 ? 32 : rows % 16 == 0 ? 16 : 0;
}

/// Columns of a slice whose sums a thread's registers hold.
int most_columns(shared::Storage storage) { return storage == shared::Storage::f64 ? 128 : 256; }

/// With slices of the values' columns where there are more than that. The second one ends with the last column, and
/// begins at a multiple of 8 columns (8 bits: 16) if it may, so that rows stay aligned.
ForwardMmaConfig in_slices(ForwardMmaConfig config, const AttentionProblem& problem) {
  const int columns = config.v_dim, most = most_columns(config.storage);
  if (columns <= most) return config;
  const int step = config.converts() ? 16 : 8, even = columns / 2 / step * step;
  const int begin = columns - even <= most ? even : columns - most;
  const auto alignment = [&](DType dtype) {
    return 1 << std::countr_zero(static_cast<unsigned>(begin * static_cast<int>(size_of(dtype))));
  };
  config.value_slices = 2;
  config.v_dim = columns - begin;
  config.kv_bytes = std::min(config.kv_bytes, alignment(problem.v_dtype));
  config.o_bytes = std::min(config.o_bytes, alignment(problem.o_dtype));
  return config;
}

}  // namespace

std::int64_t forward_mma_longest_queries(const AttentionProblem& problem) {
  std::int64_t longest = 0;
  for (const Sequence& sequence : problem.sequences) longest = std::max(longest, sequence.q_len);
  return longest;
}

std::string forward_mma_refuses(const AttentionProblem& problem, const AttentionOptions& options,
                                const device::CudaCaps& caps) {
  return portable_refuses(problem, options, caps, kDimsOfSlices);
}
std::string forward_mma_refuses(const AttentionProblem& problem, const AttentionOptions& options,
                                const device::AmdCaps& caps) {
  return portable_refuses(problem, options, caps, kDimsOfSlices);
}

std::vector<ForwardMmaConfig> forward_mma_configs(const AttentionProblem& problem, const KernelMods& mods,
                                                  const AttentionTensors& tensors, const AttentionOptions& options,
                                                  std::int64_t shared_memory_bytes, MmaTarget target) {
  const ForwardMmaConfig all = in_slices(forward_config(problem, mods, tensors, options, target), problem);
  const int dim = std::min(std::max(all.qk_dim, all.v_dim), most_columns(all.storage));
  const int bound = dim <= 64 ? 64 : dim <= 128 ? 128 : 256, packed = packed_heads_of(problem);
  std::vector<ForwardMmaConfig> configs;
  // packed_heads 0: tiles of many queries; else of `queries` of each head.
  const auto append = [&](FragmentKind fragments, int packed_heads, std::int64_t queries) {
    for (const MmaKernel& kernel : kernels_of(all.storage, fragments)) {
      if (kernel.most_dim != bound || (kernel.of_many_rows && packed_heads > 0)) continue;
      ForwardMmaConfig config = all;
      config.fragments = fragments;
      config.row_waves = kernel.row_waves;
      config.row_fragments = kernel.row_fragments;
      config.kv_block = kernel.kv_block;
      config.shared_queries = kernel.shared_queries;
      config.ctas = kernel.ctas;
      config.key_waves = kernel.key_waves;
      if (packed_heads > 0) {
        set_few_queries(config, packed_heads, queries);
        if (target.copies_beside) config.stages = stages_of(config, shared_memory_bytes);
      }
      if (std::ranges::find(configs, config) == configs.end()) configs.push_back(config);
    }
  };
  const std::int64_t longest = forward_mma_longest_queries(problem);
  const auto append_all = [&](FragmentKind fragments) {
    const auto first = std::ssize(configs);
    if (packed > 0) append(fragments, packed, longest);
    // More keys a step occupy more waves.
    std::ranges::stable_sort(configs.begin() + first, configs.end(), std::greater<>(), &ForwardMmaConfig::kv_block);
    const std::size_t of_many = configs.size();
    append(fragments, 0, longest);
    if (target.copies_beside) put_residents_first(std::span(configs).subspan(of_many), shared_memory_bytes);
  };
  const bool too_few = packed > 0 && all.shape().of_many_rows;
  if (!too_few) append_all(all.fragments);
  if (all.shape().plain_follow) append_all(FragmentKind::fma);
  if (too_few) append(all.fragments, 0, longest);
  // If a tile of the most heads has no room: few queries of fewer heads.
  const auto has_room = [&](const ForwardMmaConfig& config) {
    return shared::forward_mma_memory(config).bytes <= shared_memory_bytes;
  };
  for (int heads = fewer_heads_than(packed, problem); heads > 0; heads /= 2) {
    if (std::ranges::any_of(configs, has_room)) break;
    if (!all.shape().of_many_rows) append(all.fragments, heads, longest);
    if (all.shape().plain_follow) append(FragmentKind::fma, heads, longest);
  }
  // Tiles of as few rows as a block of the caller's mask has.
  if (const int rows = small_block_rows(options); rows > 0) {
    if (!all.shape().of_many_rows) append(all.fragments, 1, rows);
    if (all.shape().plain_follow) append(FragmentKind::fma, 1, rows);
  }
  // Tiles of fewer rows, where 64 rows of queries have no room. Plain multiply-adds have tiles of their own, for chips
  // whose matrix kernels turn out to need scratch memory.
  const auto has_roomy = [&](FragmentKind fragments) {
    return std::ranges::any_of(
        configs, [&](const ForwardMmaConfig& config) { return config.fragments == fragments && has_room(config); });
  };
  for (const FragmentKind fragments : {all.fragments, FragmentKind::fma}) {
    const bool taken = fragments == all.fragments ? !all.shape().of_many_rows : all.shape().plain_follow;
    for (const int rows : {32, 16}) {
      if (taken && !has_roomy(fragments)) append(fragments, 1, rows);
    }
  }
  return configs;
}

std::string forward_mma_misfit(const ForwardMmaConfig& config, const AttentionProblem& problem, const Places& places,
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
  if (config.placed_keys && places.key_rows % config.kv_block != 0) {
    return fmt::format("{} keys do not divide the {} of a granule, whose positions mods read", config.kv_block,
                       places.key_rows);
  }
  if (callers == nullptr) return {};
  if (config.packs() && callers->is_from_lists() && !callers->shared_by_heads()) {
    return fmt::format("packs no {} heads into a tile, since the lists of block_mask are each head's own",
                       config.packed_heads);
  }
  const BlockSize block = callers->block();
  const int queries = config.packs() ? shared::kWarpgroupRows : config.tile().unit_rows;
  if (block.q % queries != 0) {
    return fmt::format("{} queries do not divide the {} of a block of block_mask", queries, block.q);
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
