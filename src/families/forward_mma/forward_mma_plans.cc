#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>

#include "backend/portable/portable_text.h"
#include "backend/portable/shared/forward_mma_config.h"
#include "families/forward_mma/forward_mma.h"
#include "families/forward_mma/forward_mma_costs.h"
#include "heddle/error.h"
#include "plan/factors.h"
#include "plan/tiles/schedule.h"
#include "shared/sequences.h"

namespace heddle::plan {
namespace {

using problem::AttentionProblem;
using shared::ForwardMmaConfig;

/// CTAs that share a tile's steps if tiles are too few to fill the GPU: enough for two CTAs a multiprocessor, or one
/// where rings leave no room for two, as long as each has two steps or more. Steps are counted by the shape and the
/// mask, not by lengths on the device. `share`: multiplies the number.
int splits_of(const AttentionProblem& problem, const ForwardMmaConfig& config, const TileSchedule& schedule,
              const device::GpuCaps& caps, double share) {
  constexpr int kLeastSteps = 2, kMost = 64, kOfFewInAnyBatch = 8;
  // Whatever the batch, and however its lengths are known: a mask leaves other steps where only the device knows them.
  if (problem.batch_invariant) {
    return forward_mma_longest_queries(problem) <= 16 && problem.mask_mod.empty() && config.rows() <= 32
               ? kOfFewInAnyBatch
               : 1;
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
  double launch, split;                       // seconds: of a run; for each CTA of a tile, at least
  double merged_bytes_per_second;             // of CTAs' parts, which one CTA merges
  double bytes_per_second, paged_per_second;  // of keys and values: dense; in pages
  double flops_per_second;                    // of products: a bound, from forwards of many queries
};
/// Fitted to one query of 32 heads on 8, D 128, bf16, in a CUDA graph on an H200: batches of 1 to 256, 1,024 to 65,536
/// keys, dense and in pages of 16. Dense it errs by up to 5 % there; pages at 1 x 1,024 take a quarter longer, those at
/// 256 x 1,024 half as long again (docs/notes/portable_family.md). How fast parts are merged is from 64 rows of head
/// dimensions 128 and 256 on an H100.
constexpr FewQueriesTimes kHopperTimes = {13e-6, 0.9e-6, 2.5e10, 3.7e12, 3.0e12, 2.8e14};

/// The numbers that predict times. Null where nothing is known.
struct Times {
  const FewQueriesTimes* few = nullptr;
  const PortableRates* many = nullptr;
};
Times times_of(const device::CudaCaps& caps) {
  return {caps.major == 9 ? &kHopperTimes : nullptr, portable_rates(caps)};
}
Times times_of(const device::AmdCaps&) { return {}; }

std::optional<Prediction> predict_few(const AttentionProblem& problem, const ForwardMmaConfig& config,
                                      const TileSchedule& schedule, const Times& times) {
  const bool known = config.element_bytes() == 2 && !config.converts() && config.rows() <= shared::kWarpgroupRows &&
                     (config.packs() || forward_mma_longest_queries(problem) <= config.rows());
  if (times.few == nullptr || !known) return {};
  double steps = 0;
  for (const shared::WorkItem& item : schedule.items) steps += item.steps;
  const double keys = steps * config.kv_block,
               dims = static_cast<double>(config.value_slices * problem.qk_dim + problem.v_dim);
  const double bytes = keys * dims * config.element_bytes();
  const double rate = problem.page_rows > 0 ? times.few->paged_per_second : times.few->bytes_per_second;
  const double flops = 2 * dims * keys * config.rows();
  const double part = 4.0 * config.rows() * static_cast<double>(problem.v_dim) / config.value_slices;
  const double split = std::max(times.few->split, part / times.few->merged_bytes_per_second);
  return Prediction{.seconds = config.value_slices * (times.few->launch + split * (config.splits - 1)) +
                               std::max(bytes / rate, flops / times.few->flops_per_second),
                    .flops = flops,
                    .bytes = bytes};
}

std::string describe(const ForwardMmaConfig& config) {
  const std::string heads = config.packs() ? fmt::format(" of {} heads", config.packed_heads) : "";
  return fmt::format("{} rows{} x {} keys", config.rows(), heads, config.kv_block);
}

Choice choice_of(const AttentionProblem& problem, ForwardMmaConfig config, const KernelMods& mods,
                 const device::GpuCaps& caps, const Times& times, const RowsOf& rows_of, double share_of_splits = 1) {
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
  TileSchedule schedule = schedule_tiles(problem, config.tile(), forward_mma_clocks(config, times.many),
                                         choice.block_mask.get(), caps, plan.order);
  config.splits = splits_of(problem, config, schedule, caps, share_of_splits);
  plan.family_part = config;
  plan.tile = {config.rows(), config.kv_block};
  plan.grid = static_cast<int>(schedule.items.size()) * config.splits;
  plan.predicted = predict_few(problem, config, schedule, times);
  if (!plan.predicted)
    plan.predicted = forward_mma_prediction(problem, config, schedule, caps.multiprocessors, times.many);
  const std::int64_t tiles = count_tiles(problem, config.tile());
  if (config.device_lengths) plan.workspace_bytes = shared::sequences_memory(problem.batch, tiles).bytes;
  // Other bindings may make any tile attend something.
  if (config.splits_keys()) {
    plan.workspace_bytes = (plan.workspace_bytes + 255) / 256 * 256 + shared::split_memory(config, tiles).bytes;
  }
  plan.forms = {.score = portable::describe_score(mods),
                .mask = mods.mask.empty() ? "" : "computed for each pair of a partial block",
                .weight = mods.weight.empty() ? "" : "multiplied for each pair",
                .places = describe_places(mods.places)};
  plan.schedule = std::make_shared<const TileSchedule>(std::move(schedule));
  return choice;
}

/// Whether a kernel goes before the first one of the table: it is predicted much faster.
bool goes_before(const Choice& other, const Choice& first) {
  return other.plan.predicted && first.plan.predicted &&
         other.plan.predicted->seconds * kPlannerFactors.table_gain < first.plan.predicted->seconds;
}

std::string standing_after(const Choice& other, const Choice& first) {
  const std::string what = describe(other.plan.part<ForwardMmaConfig>());
  if (!other.plan.predicted || !first.plan.predicted) {
    return fmt::format("{}: stands after {} in the table of the family, which is not measured", what,
                       describe(first.plan.part<ForwardMmaConfig>()));
  }
  const double ms = 1e3 * other.plan.predicted->seconds,
               ratio = other.plan.predicted->seconds / first.plan.predicted->seconds;
  if (ratio < 1) return fmt::format("{}: predicted {:.4g} ms, too little faster", what, ms);
  return fmt::format("{}: predicted {:.4g} ms, {:.1f} % slower", what, ms, 100 * (ratio - 1));
}

std::vector<Choice> choices_of(const AttentionProblem& problem, const AttentionTensors& tensors,
                               const AttentionOptions& options, const device::GpuCaps& caps, const Times& times,
                               MmaTarget target, const RowsOf& rows_of) {
  const KernelMods mods = portable_mods(problem, OfPlaces::native);
  std::vector<Choice> choices;
  std::vector<std::string> rejected;
  for (const ForwardMmaConfig& config :
       forward_mma_configs(problem, mods, tensors, options, caps.shared_memory_bytes, target)) {
    std::string reason =
        forward_mma_misfit(config, problem, mods.places, caps.shared_memory_bytes, options.block_mask.get());
    if (!reason.empty()) {
      rejected.push_back(fmt::format("{}: {}", describe(config), reason));
      continue;
    }
    Choice choice = choice_of(problem, config, mods, caps, times, rows_of);
    const bool first = choices.empty() || goes_before(choice, choices.front());
    Choice& behind = choices.emplace_back(std::move(choice));
    // Lists are kept of the best alone. What was first falls behind, or the new one does.
    if (first) std::rotate(choices.begin(), choices.end() - 1, choices.end());
    if (choices.size() > 1) (first ? choices[1] : behind).plan.schedule.reset();
    if (problem.batch_invariant) break;  // what the compiler makes of it depends on how lengths are known
  }
  if (choices.empty()) {
    throw Error(ErrorCode::unsupported, fmt::format("no kernel of forward_mma fits: {}", fmt::join(rejected, "; ")));
  }
  for (std::size_t i = 0; i < choices.size(); ++i) {
    choices[i].plan.rejected = rejected;
    for (std::size_t j = i + 1; j < choices.size(); ++j) {
      choices[i].plan.rejected.push_back(standing_after(choices[j], choices[i]));
    }
  }
  return choices;
}

std::vector<Choice> variants_of(const AttentionProblem& problem, const AttentionTensors& tensors,
                                const AttentionOptions& options, const device::GpuCaps& caps, const Times& times,
                                MmaTarget target, const RowsOf& rows_of) {
  const KernelMods mods = portable_mods(problem, OfPlaces::native);
  std::vector<Choice> choices;
  for (const ForwardMmaConfig& config :
       forward_mma_configs(problem, mods, tensors, options, caps.shared_memory_bytes, target)) {
    const std::string reason =
        forward_mma_misfit(config, problem, mods.places, caps.shared_memory_bytes, options.block_mask.get());
    if (!reason.empty()) continue;
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
  return schedule_tiles(problem, config.tile(), forward_mma_clocks(config, nullptr), block_mask, caps, order);
}

std::vector<Choice> forward_mma(const AttentionProblem& problem, const AttentionTensors& tensors,
                                const AttentionOptions& options, const device::CudaCaps& caps, const RowsOf& rows_of) {
  return choices_of(problem, tensors, options, caps, times_of(caps), nvidia_target(caps), rows_of);
}

std::vector<Choice> forward_mma(const AttentionProblem& problem, const AttentionTensors& tensors,
                                const AttentionOptions& options, const device::AmdCaps& caps, const RowsOf& rows_of) {
  return choices_of(problem, tensors, options, caps, times_of(caps), amd_target(caps.architecture), rows_of);
}

std::vector<Choice> forward_mma_variants(const AttentionProblem& problem, const AttentionTensors& tensors,
                                         const AttentionOptions& options, const device::CudaCaps& caps,
                                         const RowsOf& rows_of) {
  return variants_of(problem, tensors, options, caps, times_of(caps), nvidia_target(caps), rows_of);
}

std::vector<Choice> forward_mma_variants(const AttentionProblem& problem, const AttentionTensors& tensors,
                                         const AttentionOptions& options, const device::AmdCaps& caps,
                                         const RowsOf& rows_of) {
  return variants_of(problem, tensors, options, caps, times_of(caps), amd_target(caps.architecture), rows_of);
}

}  // namespace heddle::plan
