#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <functional>
#include <map>
#include <optional>
#include <span>

#include "backend/portable/portable_refuses.h"
#include "backend/portable/portable_text.h"
#include "backend/portable/shared/forward_mma_config.h"
#include "families/forward_mma/forward_mma.h"
#include "heddle/error.h"
#include "plan/tiles/packed_heads.h"
#include "plan/tiles/schedule.h"
#include "shared/sequences.h"

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

std::int64_t longest_queries(const AttentionProblem& problem) {
  std::int64_t longest = 0;
  for (const Sequence& sequence : problem.sequences) longest = std::max(longest, sequence.q_len);
  return longest;
}

constexpr std::int64_t kMostFewQueries = 32;

/// Query heads that share a tile, if queries are so few that these heads' fit in 64 rows; 0: they are not few.
int packed_heads_of(const AttentionProblem& problem) {
  const std::int64_t longest = longest_queries(problem);
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
  const std::int64_t longest = longest_queries(problem);
  if (problem.batch_invariant || longest == 0 || longest > kMostFewQueries) return 0;
  return packed_heads > 0 ? packed_heads / 2 : 1;
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

/// Columns of a slice whose sums a thread's registers hold.
int most_columns(shared::Storage storage) { return storage == shared::Storage::f64 ? 128 : 256; }

/// With slices of the values' columns where there are more than that. The second one ends with the last column, and
/// begins at a multiple of 8 columns if it may, so that rows stay aligned.
ForwardMmaConfig in_slices(ForwardMmaConfig config, const AttentionProblem& problem) {
  const int columns = config.v_dim, most = most_columns(config.storage);
  if (columns <= most) return config;
  const int half = columns / 2, begin = columns - half / 8 * 8 <= most ? half / 8 * 8 : columns - most;
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

std::string forward_mma_refuses(const AttentionProblem& problem, const AttentionOptions& options,
                                const device::CudaCaps& caps) {
  return portable_refuses(problem, options, caps, kDimsOfSlices);
}
std::string forward_mma_refuses(const AttentionProblem& problem, const AttentionOptions& options,
                                const device::AmdCaps& caps) {
  return portable_refuses(problem, options, caps);
}

std::vector<ForwardMmaConfig> forward_mma_configs(const AttentionProblem& problem, const KernelMods& mods,
                                                  const AttentionTensors& tensors, std::int64_t shared_memory_bytes,
                                                  MmaTarget target) {
  const ForwardMmaConfig all = in_slices(forward_config(problem, mods, tensors, target), problem);
  const int dim = std::min(std::max(all.qk_dim, all.v_dim), most_columns(all.storage));
  const int bound = dim <= 64 ? 64 : dim <= 128 ? 128 : 256, packed = packed_heads_of(problem);
  std::vector<ForwardMmaConfig> configs;
  const auto append = [&](FragmentKind fragments, int packed_heads) {
    for (const MmaKernel& kernel : kernels_of(all.storage, fragments)) {
      if (kernel.most_dim != bound) continue;
      ForwardMmaConfig config = all;
      config.fragments = fragments;
      config.row_waves = kernel.row_waves;
      config.row_fragments = kernel.row_fragments;
      config.kv_block = kernel.kv_block;
      config.shared_queries = kernel.shared_queries;
      config.ctas = kernel.ctas;
      config.key_waves = kernel.key_waves;
      if (packed_heads > 0) {
        set_few_queries(config, packed_heads, longest_queries(problem));
        if (target.copies_beside) config.stages = stages_of(config, shared_memory_bytes);
      }
      if (std::ranges::find(configs, config) == configs.end()) configs.push_back(config);
    }
  };
  const auto append_all = [&](FragmentKind fragments) {
    const auto first = std::ssize(configs);
    if (packed > 0) append(fragments, packed);
    // More keys a step occupy more waves.
    std::ranges::stable_sort(configs.begin() + first, configs.end(), std::greater<>(), &ForwardMmaConfig::kv_block);
    append(fragments, 0);
  };
  const bool too_few = packed > 0 && all.shape().of_many_rows;
  if (!too_few) append_all(all.fragments);
  if (all.shape().plain_follow) append_all(FragmentKind::fma);
  if (too_few) append(all.fragments, 0);
  // Few queries of fewer heads, where a tile of as many as there may be has no room.
  const auto has_room = [&](const ForwardMmaConfig& config) {
    return shared::forward_mma_memory(config).bytes <= shared_memory_bytes;
  };
  for (int heads = fewer_heads_than(packed, problem); heads > 0; heads /= 2) {
    if (std::ranges::any_of(configs, has_room)) break;
    if (!all.shape().of_many_rows) append(all.fragments, heads);
    if (all.shape().plain_follow) append(FragmentKind::fma, heads);
  }
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

namespace {

/// For the order of tiles alone: nothing of it was measured. A step's products take as long on every chip; a partial
/// step a little longer.
TileClocks clocks_of(const ForwardMmaConfig& config) {
  const double step = 1.0 * config.rows() * config.kv_block * (config.qk_columns() + config.v_columns()) / 512;
  return {.full_step = step, .partial_step = 1.2 * step, .tile = 2 * step, .loads = 0};
}

/// CTAs that share a tile's steps if tiles are too few to fill the GPU: enough for two CTAs a multiprocessor, or one
/// where rings leave no room for two, as long as each has two steps or more. Steps are counted by the shape and the
/// mask, not by lengths on the device. `share`: multiplies the number.
int splits_of(const AttentionProblem& problem, const ForwardMmaConfig& config, const TileSchedule& schedule,
              const device::GpuCaps& caps, double share) {
  constexpr int kLeastSteps = 2, kMost = 64, kOfFewInAnyBatch = 8;
  // Whatever the batch, and however its lengths are known: a mask leaves other steps where only the device knows them.
  if (problem.batch_invariant) {
    return longest_queries(problem) <= 16 && problem.mask_mod.empty() && config.rows() <= 32 ? kOfFewInAnyBatch : 1;
  }
  if (config.rows() > shared::kWarpgroupRows || schedule.items.empty()) return 1;
  const auto tiles = static_cast<int>(schedule.items.size());
  const int bytes = shared::forward_mma_memory(config).bytes;
  const int resident = config.rings() ? std::clamp(shared::resident_ctas(bytes, caps.shared_memory_bytes), 1, 2) : 2;
  const int wanted = resident * std::max(1, caps.multiprocessors) / tiles;
  const int steps = std::ranges::max(schedule.items, {}, &shared::WorkItem::steps).steps;
  const int planned = std::clamp(std::min(wanted, steps / kLeastSteps), 1, kMost);
  return std::clamp(static_cast<int>(share * planned), 1, std::min(kMost, std::max(1, steps)));
}

/// A chip's times for few queries, whose keys CTAs share.
struct FewQueriesTimes {
  double launch, split;                       // seconds: of a run; for each CTA of a tile, whose part is merged
  double bytes_per_second, paged_per_second;  // of keys and values: dense; in pages
  double flops_per_second;                    // of products: a bound, from forwards of many queries
};
/// Fitted to one query of 32 heads on 8, D 128, bf16, in a CUDA graph on an H200: batches of 1 to 256, 1,024 to 65,536
/// keys, dense and in pages of 16. Dense it errs by up to 5 % there; pages at 1 x 1,024 take a quarter longer, those at
/// 256 x 1,024 half as long again (docs/notes/portable_family.md).
constexpr FewQueriesTimes kHopperTimes = {13e-6, 0.9e-6, 3.7e12, 3.0e12, 2.8e14};

/// Null where nothing was measured.
const FewQueriesTimes* few_queries_times(const device::CudaCaps& caps) {
  return caps.major == 9 ? &kHopperTimes : nullptr;
}
const FewQueriesTimes* few_queries_times(const device::AmdCaps&) { return nullptr; }

std::optional<Prediction> predict(const AttentionProblem& problem, const ForwardMmaConfig& config,
                                  const TileSchedule& schedule, const FewQueriesTimes* times) {
  if (times == nullptr || config.element_bytes() != 2 || config.rows() > shared::kWarpgroupRows) return {};
  double steps = 0;
  for (const shared::WorkItem& item : schedule.items) steps += item.steps;
  const double keys = steps * config.kv_block,
               dims = static_cast<double>(config.value_slices * problem.qk_dim + problem.v_dim);
  const double bytes = keys * dims * config.element_bytes();
  const double rate = problem.page_rows > 0 ? times->paged_per_second : times->bytes_per_second;
  const double flops = 2 * dims * keys * config.rows();
  return Prediction{.seconds = config.value_slices * (times->launch + times->split * (config.splits - 1)) +
                               std::max(bytes / rate, flops / times->flops_per_second),
                    .flops = flops,
                    .bytes = bytes};
}

std::string describe(const ForwardMmaConfig& config) {
  const std::string heads = config.packs() ? fmt::format(" of {} heads", config.packed_heads) : "";
  return fmt::format("{} rows{} x {} keys", config.rows(), heads, config.kv_block);
}

Choice choice_of(const AttentionProblem& problem, ForwardMmaConfig config, const KernelMods& mods,
                 const device::GpuCaps& caps, const FewQueriesTimes* times, const RowsOf& rows_of,
                 double share_of_splits = 1) {
  Choice choice;
  Plan& plan = choice.plan;
  plan.device = caps.index;
  plan.multiprocessors = caps.multiprocessors;
  plan.mods = mods;
  if (config.packs()) {
    plan.packed_heads = static_cast<int>(std::min<std::int64_t>(config.packed_heads, problem.group()));
    plan.packed_queries = config.tile().packed_queries;
  }
  choice.block_mask = rows_of({shared::kWarpgroupRows, config.kv_block});
  TileSchedule schedule = forward_mma_schedule(problem, config, choice.block_mask.get(), caps, plan.order);
  config.splits = splits_of(problem, config, schedule, caps, share_of_splits);
  plan.family_part = config;
  plan.tile = {config.rows(), config.kv_block};
  plan.grid = static_cast<int>(schedule.items.size()) * config.splits;
  plan.predicted = predict(problem, config, schedule, times);
  const std::int64_t tiles = count_tiles(problem, config.tile());
  if (config.device_lengths) plan.workspace_bytes = shared::sequences_memory(problem.batch, tiles).bytes;
  // Other bindings may make any tile attend something.
  if (config.splits_keys()) {
    plan.workspace_bytes = (plan.workspace_bytes + 255) / 256 * 256 + shared::split_memory(config, tiles).bytes;
  }
  plan.forms = {.score = portable::describe_score(mods),
                .mask = mods.mask.empty() ? "" : "computed for each pair of a partial block",
                .weight = mods.weight.empty() ? "" : "multiplied for each pair"};
  plan.schedule = std::make_shared<const TileSchedule>(std::move(schedule));
  return choice;
}

std::vector<Choice> choices_of(const AttentionProblem& problem, const AttentionTensors& tensors,
                               const AttentionOptions& options, const device::GpuCaps& caps,
                               const FewQueriesTimes* times, MmaTarget target, const RowsOf& rows_of) {
  const KernelMods mods = portable_mods(problem);
  std::vector<Choice> choices;
  std::vector<std::string> rejected;
  for (const ForwardMmaConfig& config : forward_mma_configs(problem, mods, tensors, caps.shared_memory_bytes, target)) {
    std::string reason = forward_mma_misfit(config, problem, caps.shared_memory_bytes, options.block_mask.get());
    if (!reason.empty()) {
      rejected.push_back(fmt::format("{}: {}", describe(config), reason));
      continue;
    }
    choices.push_back(choice_of(problem, config, mods, caps, times, rows_of));
    if (problem.batch_invariant) break;  // what the compiler makes of it depends on how lengths are known
    if (choices.size() > 1) choices.back().plan.schedule.reset();  // lists are kept of the best alone
  }
  if (choices.empty()) {
    throw Error(ErrorCode::unsupported, fmt::format("no kernel of forward_mma fits: {}", fmt::join(rejected, "; ")));
  }
  for (std::size_t i = 0; i < choices.size(); ++i) {
    choices[i].plan.rejected = rejected;
    for (std::size_t j = i + 1; j < choices.size(); ++j) {
      choices[i].plan.rejected.push_back(
          fmt::format("{}: stands after {} in the table of the family, which is not measured",
                      describe(choices[j].plan.part<shared::ForwardMmaConfig>()),
                      describe(choices[i].plan.part<shared::ForwardMmaConfig>())));
    }
  }
  return choices;
}

std::vector<Choice> variants_of(const AttentionProblem& problem, const AttentionTensors& tensors,
                                const AttentionOptions& options, const device::GpuCaps& caps,
                                const FewQueriesTimes* times, MmaTarget target, const RowsOf& rows_of) {
  const KernelMods mods = portable_mods(problem);
  std::vector<Choice> choices;
  for (const ForwardMmaConfig& config : forward_mma_configs(problem, mods, tensors, caps.shared_memory_bytes, target)) {
    if (!forward_mma_misfit(config, problem, caps.shared_memory_bytes, options.block_mask.get()).empty()) continue;
    const int planned =
        choice_of(problem, config, mods, caps, times, rows_of).plan.part<shared::ForwardMmaConfig>().splits;
    for (const double share : {0.5, 2.0}) {
      Choice choice = choice_of(problem, config, mods, caps, times, rows_of, share);
      if (choice.plan.part<shared::ForwardMmaConfig>().splits == planned) continue;
      choice.plan.schedule.reset();
      choices.push_back(std::move(choice));
    }
  }
  return choices;
}

}  // namespace

TileSchedule forward_mma_schedule(const AttentionProblem& problem, const ForwardMmaConfig& config,
                                  const BlockMask* block_mask, const device::GpuCaps& caps, const TileOrder& order) {
  return schedule_tiles(problem, config.tile(), clocks_of(config), block_mask, caps, order);
}

std::vector<Choice> forward_mma(const AttentionProblem& problem, const AttentionTensors& tensors,
                                const AttentionOptions& options, const device::CudaCaps& caps, const RowsOf& rows_of) {
  return choices_of(problem, tensors, options, caps, few_queries_times(caps), kNvidia, rows_of);
}

std::vector<Choice> forward_mma(const AttentionProblem& problem, const AttentionTensors& tensors,
                                const AttentionOptions& options, const device::AmdCaps& caps, const RowsOf& rows_of) {
  return choices_of(problem, tensors, options, caps, few_queries_times(caps), amd_target(caps.architecture), rows_of);
}

std::vector<Choice> forward_mma_variants(const AttentionProblem& problem, const AttentionTensors& tensors,
                                         const AttentionOptions& options, const device::CudaCaps& caps,
                                         const RowsOf& rows_of) {
  return variants_of(problem, tensors, options, caps, few_queries_times(caps), kNvidia, rows_of);
}

std::vector<Choice> forward_mma_variants(const AttentionProblem& problem, const AttentionTensors& tensors,
                                         const AttentionOptions& options, const device::AmdCaps& caps,
                                         const RowsOf& rows_of) {
  return variants_of(problem, tensors, options, caps, few_queries_times(caps), amd_target(caps.architecture), rows_of);
}

}  // namespace heddle::plan
