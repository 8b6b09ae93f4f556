#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>

#include "backend/portable/portable_text.h"
#include "families/decode_mma/decode_mma.h"
#include "families/decode_mma/decode_mma_keys.h"
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

/// A run takes `launch` seconds, and reads so many bytes of keys and values in a second. A guess for an H200, from an
/// H100's figures and the H200's rate of reading (docs/notes/decode.md).
struct MemoryTimes {
  double launch, bytes_per_second, paged_per_second;
};
constexpr MemoryTimes kHopperTimes = {9e-6, 4.3e12, 4.25e12};

/// Bytes of keys and values of so many units, as long as sequences may be.
double bytes_of(const AttentionProblem& problem, const ForwardMmaConfig& config, std::int64_t units) {
  const double dims = static_cast<double>(problem.qk_dim + (config.wide() ? 0 : problem.v_dim));
  return static_cast<double>(units * config.kv_block * problem.kv_heads) * dims * config.kv_element_bytes();
}
double bytes_of(const AttentionProblem& problem, const ForwardMmaConfig& config, const DecodeKeys& keys) {
  return bytes_of(problem, config, keys.units - keys.again);
}

/// wide(): a CTA alone on its multiprocessor takes so long for a block, of which memory gives the next one meanwhile.
/// By mma.sync as measured on an H100 (4.0 us for 16 rows, 6.2 for 64); by wgmma a guess, of some 3,800 clocks.
double block_seconds(const ForwardMmaConfig& config) {
  if (config.by_warpgroups()) return 2.2e-6;
  return (3.3e-6 + 0.045e-6 * config.live_rows) * config.kv_block / 64;
}

/// By wgmma, keys and values apart: a CTA alone on its multiprocessor takes so long for a unit. A guess, of some 1,700
/// clocks for 128 keys of D 128.
double unit_seconds(const ForwardMmaConfig& config) {
  const double keys = config.kv_block / 128.0;
  return keys * (0.45e-6 + 0.55e-6 * (config.qk_dim + config.v_dim) / 256);
}

std::optional<Prediction> predict(const AttentionProblem& problem, const ForwardMmaConfig& config,
                                  const DecodeKeys& keys, const device::CudaCaps& caps) {
  if (caps.major != 9) return {};
  const double bytes = bytes_of(problem, config, keys);
  const double tiles_of_kv_head =
      static_cast<double>(decode_mma_tiles(problem, config)) / static_cast<double>(problem.kv_heads);
  const double rate = problem.page_rows > 0 ? kHopperTimes.paged_per_second : kHopperTimes.bytes_per_second;
  // Tiles of the same keys read them through the L2 cache. From 42 rows of a head of keys on products take longer than
  // memory does, whatever tiles they are in (64 rows of 16 and of 32, H100). A product of 16 bits has as many flops a
  // byte as rows.
  constexpr double kRowsOfMemory = 42;
  const std::int64_t unit_rows =
      (keys.units - keys.shared_units) * config.own_rows() + keys.shared_units * config.live_rows;
  const double products = bytes_of(problem, config, unit_rows) * tiles_of_kv_head / kRowsOfMemory;
  double seconds = std::max(bytes, products) / rate;
  if (config.by_warpgroups() && !config.wide()) {
    const double units = static_cast<double>(keys.units * decode_mma_tiles(problem, config));
    seconds = std::max(bytes / rate, std::max(1.0, units / caps.multiprocessors) * unit_seconds(config));
  }
  if (config.wide()) {
    const double blocks = static_cast<double>(keys.units * decode_mma_tiles(problem, config));
    seconds = std::max(bytes / rate, std::max(1.0, blocks / caps.multiprocessors) * block_seconds(config));
  }
  return Prediction{.seconds = kHopperTimes.launch + seconds,
                    .flops = bytes_of(problem, config, keys.units) * tiles_of_kv_head * config.rows(),
                    .bytes = bytes};
}

/// Tiles whose waves share rows.
bool yields(const ForwardMmaConfig& config) {
  if (config.row_waves == 1 || config.prefixed()) return false;
  return !config.by_warpgroups() || !config.wide();
}

/// Runs that read little overlap with the kernel before them. CTAs of longer runs would stand in the way of the run
/// before, which is still reading: up to 2 % were lost where a run reads 0.5 GB and more (docs/notes/decode.md).
bool overlaps(const AttentionProblem& problem, const ForwardMmaConfig& config, const DecodeKeys& keys,
              const device::CudaCaps& caps) {
  constexpr double kMostBytes = 300e6;
  return caps.major >= 9 && bytes_of(problem, config, keys) <= kMostBytes;
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
  return fmt::format("{} rows of {} heads x {} keys, rings of {}{}", config.live_rows, config.packed_heads,
                     config.kv_block, config.stages, config.by_warpgroups() ? ", by wgmma" : "");
}

Choice choice_of(const AttentionProblem& problem, ForwardMmaConfig config, const KernelMods& mods,
                 const Bindings& bindings, const device::CudaCaps& caps) {
  const DecodeKeys keys = decode_mma_keys(problem, mods, bindings, config);
  config.overlaps = overlaps(problem, config, keys, caps);
  config.early = config.overlaps && problem.fresh_tokens > 0;
  Choice choice;
  Plan& plan = choice.plan;
  plan.device = caps.index;
  plan.multiprocessors = caps.multiprocessors;
  plan.mods = mods;
  plan.packed_heads = static_cast<int>(std::min<std::int64_t>(config.packed_heads, problem.group()));
  plan.packed_queries = config.live_rows / config.packed_heads;
  plan.family_part = config;
  plan.tile = {config.live_rows, config.kv_block};
  const std::int64_t ctas = gangs_of(problem, config, keys, caps) * decode_mma_tiles(problem, config);
  plan.grid = static_cast<int>(ctas);
  plan.workspace_bytes =
      shared::decode_mma_workspace(config, ctas, problem.batch * decode_mma_tiles(problem, config)).bytes;
  plan.predicted = predict(problem, config, keys, caps);
  plan.yields = yields(config);
  if (std::string sentence = decode_mma_prefixes(problem, config); !sentence.empty()) plan.access.push_back(sentence);
  plan.forms = {.score = portable::describe_score(mods),
                .mask = decode_mma_mask_form(mods),
                .weight = mods.weight.empty() ? "" : "multiplied for each pair"};
  return choice;
}

}  // namespace

std::vector<Choice> decode_mma(const AttentionProblem& problem, const AttentionTensors& tensors,
                               const Bindings& bindings, const device::CudaCaps& caps, const RowsOf& rows_of) {
  const KernelMods mods = portable_mods(problem);
  const std::vector<ForwardMmaConfig> configs = decode_mma_configs(problem, mods, tensors, caps);
  std::vector<Choice> choices;
  for (const ForwardMmaConfig& config : configs) choices.push_back(choice_of(problem, config, mods, bindings, caps));
  if (choices.empty()) {
    throw Error(ErrorCode::unsupported,
                fmt::format("no kernel of decode_mma fits into {} bytes of shared memory", caps.shared_memory_bytes));
  }
  check_density(problem, decode_mma_keys(problem, mods, bindings, configs.front()), rows_of);
  const auto& first = choices.front().plan.part<ForwardMmaConfig>();
  for (Choice& choice : choices) {
    for (const Choice& other : choices) {
      if (&other <= &choice) continue;
      const auto& config = other.plan.part<ForwardMmaConfig>();
      const char* const reason = config.by_warpgroups() == first.by_warpgroups()
                                     ? "fewer bytes are under way, or fewer waves compute, than with"
                                     : "mma.sync computes a block slower than wgmma does with";
      choice.plan.rejected.push_back(fmt::format("{}: {} {}", describe(config), reason, describe(first)));
    }
  }
  return choices;
}

}  // namespace heddle::plan
