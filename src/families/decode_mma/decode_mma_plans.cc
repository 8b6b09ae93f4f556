#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "backend/portable/portable_text.h"
#include "families/decode_mma/decode_mma.h"
#include "families/decode_mma/decode_mma_costs.h"
#include "families/decode_mma/decode_mma_keys.h"
#include "families/decode_mma/decode_mma_shared_keys.h"
#include "families/decode_mma/shared/decode_mma_memory.h"
#include "families/decode_mma/shared/decode_mma_params.h"
#include "heddle/error.h"

namespace heddle::plan {
namespace {

using problem::AttentionProblem;
using shared::ForwardMmaConfig;

/// The gangs that multiprocessors hold at once, as long as each has a unit. Only the device knows the units that a mask
/// leaves lengths that only it knows.
std::int64_t gangs_of(const AttentionProblem& problem, const ForwardMmaConfig& config, const DecodeKeys& keys,
                      const device::CudaCaps& caps) {
  const std::int64_t tiles = decode_mma_tiles(problem, config);
  const std::int64_t room = std::max<std::int64_t>(1, std::int64_t{config.ctas} * caps.multiprocessors / tiles);
  const std::int64_t units = config.device_lengths ? decode_mma_units(problem, config) : keys.units;
  return shared::gangs_of_line(static_cast<int>(units), static_cast<int>(problem.batch), static_cast<int>(room));
}

/// Tiles whose waves share rows by mma.sync, whose predictions err most.
bool yields(const ForwardMmaConfig& config) {
  return config.row_waves > 1 && !config.prefixed() && !config.by_warpgroups();
}

/// Runs that read little overlap with the kernel before them. CTAs of longer runs would stand in the way of the run
/// before, which is still reading: up to 2 % were lost where a run reads 0.5 GB and more (docs/notes/decode.md).
bool overlaps(const AttentionProblem& problem, const ForwardMmaConfig& config, const DecodeKeys& keys,
              const device::CudaCaps& caps) {
  constexpr double kMostBytes = 300e6;
  return caps.major >= 9 && decode_mma_bytes(problem, config, keys.units - keys.again) <= kMostBytes;
}

/// Families that walk the mask's rows read what the mask leaves, this one what its bounds leave.
void check_density(const AttentionProblem& problem, const DecodeKeys& keys, const RowsOf& rows_of) {
  constexpr double kLeast = 0.8;
  if (problem.batch_invariant) return;  // what other sequences' masks leave decides nothing
  if (problem.mask_mod.empty() || problem.device_lengths || keys.read == 0) return;
  const std::shared_ptr<const BlockMask> rows = rows_of({shared::kWarpgroupRows, shared::kWarpgroupRows});
  if (rows == nullptr) return;
  const double left = rows->statistics().density();
  const double read = static_cast<double>(keys.read) / static_cast<double>(keys.all);
  if (left >= kLeast * read) return;
  throw Error(ErrorCode::unsupported,
              fmt::format("the mask leaves {:.0f} % of the blocks of keys, and {:.0f} % of the keys would be read; "
                          "{:.0f} % of what is read, and more, is accepted",
                          100 * left, 100 * read, 100 * kLeast));
}

std::string describe(const ForwardMmaConfig& config) {
  return fmt::format("{} rows of {} heads x {} keys, rings of {}{}{}{}", config.live_rows, config.packed_heads,
                     config.kv_block, config.stages, config.by_warpgroups() ? ", by wgmma" : "",
                     config.boxes ? ", keys by TMA" : "",
                     config.shares_elsewhere() ? ", behind a kernel of shared keys" : "");
}

/// `tests`: blocks that the mask leaves nothing are passed over, where the kernel can.
Choice choice_of(const AttentionProblem& problem, ForwardMmaConfig config, const KernelMods& mods,
                 const Bindings& bindings, const device::CudaCaps& caps, bool tests) {
  const DecodeKeys keys = decode_mma_keys(problem, mods, bindings, config);
  config.overlaps = overlaps(problem, config, keys, caps);
  config.early = config.overlaps && problem.fresh_tokens > 0 && !config.shares_elsewhere();
  if (tests) config.tested_heads = decode_mma_tested_heads(mods, config);
  Choice choice;
  Plan& plan = choice.plan;
  plan.device = caps.index;
  plan.multiprocessors = caps.multiprocessors;
  plan.mods = mods;
  plan.packed_heads = static_cast<int>(std::min<std::int64_t>(config.packed_heads, problem.group()));
  plan.packed_queries = config.live_rows / config.packed_heads;
  plan.family_part = config;
  plan.tile = {config.live_rows, config.kv_block};
  const int tiles = decode_mma_tiles(problem, config);
  plan.grid = static_cast<int>(gangs_of(problem, config, keys, caps)) * tiles;
  plan.workspace_bytes = shared::decode_mma_workspace(config, plan.grid, problem.batch, tiles,
                                                      shared_keys_gangs(config, caps.multiprocessors, tiles))
                             .bytes;
  if (caps.major == 9) plan.predicted = decode_mma_prediction(problem, config, keys, caps.multiprocessors);
  plan.yields = yields(config);
  if (std::string sentence = decode_mma_prefixes(problem, config); !sentence.empty()) plan.access.push_back(sentence);
  plan.forms = {.score = portable::describe_score(mods),
                .mask = decode_mma_mask_form(mods, config),
                .weight = mods.weight.empty() ? "" : "multiplied for each pair"};
  return choice;
}

/// Two kernels come first where sequences share keys. Where the host knows the groups, and one kernel that ignores them
/// is predicted to take no longer, it goes before.
void rank_by_prefixes(const AttentionProblem& problem, std::vector<Choice>& choices) {
  if (problem.prefix_group.empty() || !choices.front().plan.part<ForwardMmaConfig>().shares_elsewhere()) return;
  const auto ignores = [](const Choice& each) { return !each.plan.part<ForwardMmaConfig>().prefixed(); };
  const auto other = std::ranges::find_if(choices, ignores);
  if (other == choices.end() || !other->plan.predicted || !choices.front().plan.predicted) return;
  if (other->plan.predicted->seconds > choices.front().plan.predicted->seconds) return;
  std::ranges::stable_partition(choices, ignores);
}

}  // namespace

std::vector<Choice> decode_mma(const AttentionProblem& problem, const AttentionTensors& tensors,
                               const AttentionOptions& options, const device::CudaCaps& caps, const RowsOf& rows_of) {
  const KernelMods mods = portable_mods(problem);
  const std::vector<ForwardMmaConfig> configs = decode_mma_configs(problem, mods, tensors, options, caps);
  std::vector<Choice> choices;
  const auto add = [&](const ForwardMmaConfig& config, bool tests) {
    choices.push_back(choice_of(problem, config, mods, options.bindings, caps, tests));
  };
  for (const ForwardMmaConfig& config : configs) {
    add(config, true);
    // Where registers do not suffice for that, all blocks are read.
    if (decode_mma_tested_heads(mods, config) > 0) add(config, false);
  }
  if (choices.empty()) {
    throw Error(ErrorCode::unsupported,
                fmt::format("no kernel of decode_mma fits into {} bytes of shared memory", caps.shared_memory_bytes));
  }
  rank_by_prefixes(problem, choices);
  check_density(problem, decode_mma_keys(problem, mods, options.bindings, configs.front()), rows_of);
  const auto& first = choices.front().plan.part<ForwardMmaConfig>();
  for (Choice& choice : choices) {
    for (const Choice& other : choices) {
      if (&other <= &choice) continue;
      const auto& config = other.plan.part<ForwardMmaConfig>();
      const char* const reason = config.tested_heads < first.tested_heads
                                     ? "blocks without a pair are read, unlike with"
                                 : config.shares_elsewhere() != first.shares_elsewhere()
                                     ? "shared keys take longer than in a kernel of their own, before"
                                 : config.by_warpgroups() == first.by_warpgroups()
                                     ? "fewer bytes are under way, or fewer waves compute, than with"
                                     : "mma.sync computes a block slower than wgmma does with";
      choice.plan.rejected.push_back(fmt::format("{}: {} {}", describe(config), reason, describe(first)));
    }
  }
  return choices;
}

std::int64_t decode_mma_units(const AttentionProblem& problem, const ForwardMmaConfig& config) {
  std::int64_t units = 0;
  for (const Sequence& sequence : problem.sequences) {
    units += std::max<std::int64_t>(1, (sequence.kv_len + config.kv_block - 1) / config.kv_block);
  }
  return units;
}

std::vector<Setting> decode_mma_settings(const ForwardMmaConfig& config) {
  std::vector<Setting> settings = settings_of(config, {"fragments", "storage"});
  settings.push_back({"shared_memory_bytes", shared::decode_mma_memory(config).bytes});
  return settings;
}

}  // namespace heddle::plan
