#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <tuple>

#include "backend/portable/portable_refuses.h"
#include "backend/portable/portable_text.h"
#include "expr/key_bounds.h"
#include "families/decode_mma/decode_mma.h"
#include "families/decode_mma/decode_mma_keys.h"
#include "families/decode_mma/shared/decode_mma_memory.h"
#include "families/decode_mma/shared/decode_mma_params.h"
#include "heddle/error.h"
#include "plan/tiles/packed_heads.h"

namespace heddle::plan {
namespace {

using problem::AttentionProblem;
using shared::ForwardMmaConfig;

constexpr std::int64_t kMostQueries = 32, kMostRows = 32;
/// Sums of O and queries of two fragments of rows take all registers of a thread where head dims are larger.
constexpr std::int64_t kMostDimOfTwoFragments = 128;

/// At least 1: rows without a query are stored, too.
std::int64_t longest_queries(const AttentionProblem& problem) {
  std::int64_t longest = 1;
  for (const Sequence& sequence : problem.sequences) longest = std::max(longest, sequence.q_len);
  return longest;
}

std::int64_t most_rows(const AttentionProblem& problem) {
  return std::max(problem.qk_dim, problem.v_dim) > kMostDimOfTwoFragments ? kMostRows / 2 : kMostRows;
}

/// Query heads that share a tile of up to `most` rows: a power of two.
int packed_heads_of(const AttentionProblem& problem, std::int64_t most) {
  const auto group = std::bit_ceil(static_cast<std::uint64_t>(problem.group()));
  const auto fit = std::bit_floor(static_cast<std::uint64_t>(most / longest_queries(problem)));
  return static_cast<int>(std::min(group, fit));
}

/// Rows past the sequences' own must be found, or their tiles stored for no query.
bool by_sequence(const AttentionProblem& problem) {
  const auto differs = [&](const Sequence& sequence) { return sequence.q_len != problem.q_rows; };
  return problem.page_rows > 0 || problem.packed || problem::sequences_differ(problem) ||
         std::ranges::any_of(problem.sequences, differs);
}

/// With as many heads in a tile as make up to `most` rows.
ForwardMmaConfig with_rows(ForwardMmaConfig config, const AttentionProblem& problem, std::int64_t most) {
  config.packed_heads = packed_heads_of(problem, most);
  config.live_rows = static_cast<int>(longest_queries(problem) * config.packed_heads);
  config.row_fragments = config.live_rows > config.shape().rows ? 2 : 1;
  // Queries have no room in registers beside so many sums.
  config.shared_queries = config.row_fragments == 2 || std::max(config.qk_dim, config.v_dim) > kMostDimOfTwoFragments;
  return config;
}

/// Waves and rings of a tile that fit a multiprocessor, best first.
std::vector<ForwardMmaConfig> configs_of(const ForwardMmaConfig& all, std::int64_t shared_memory_bytes) {
  struct Fitting {
    ForwardMmaConfig config;
    int resident, under_way;  // CTAs of a multiprocessor; bytes that come while others are computed
  };
  std::vector<Fitting> fitting;
  for (const int waves : {8, 4, 2}) {
    for (const int stages : {3, 2}) {
      ForwardMmaConfig config = all;
      config.key_waves = waves;
      config.kv_block = waves * all.shape().columns;
      config.stages = stages;
      const int bytes = shared::decode_mma_memory(config).bytes;
      if (bytes > shared_memory_bytes) continue;
      const int resident = std::min(8 / waves, shared::resident_ctas(bytes, shared_memory_bytes));
      config.ctas = resident;
      fitting.push_back({config, resident, resident * waves * (stages - 1) * shared::forward_mma_memory(config).stage});
    }
  }
  // Eight waves occupy a multiprocessor; then what is under way counts, up to what memory's latency takes.
  std::ranges::stable_sort(fitting, std::greater<>(), [](const Fitting& each) {
    constexpr int kEnough = 64 << 10;
    return std::tuple(std::min(each.under_way, kEnough), each.resident * each.config.waves(), each.config.waves());
  });
  std::vector<ForwardMmaConfig> configs;
  for (const Fitting& each : fitting) configs.push_back(each.config);
  return configs;
}

}  // namespace

std::string decode_mma_refuses(const AttentionProblem& problem, const AttentionOptions& options,
                               const device::CudaCaps& caps) {
  if (std::string reason = portable_refuses(problem, options, caps); !reason.empty()) return reason;
  if (problem.q_dtype != DType::f16 && problem.q_dtype != DType::bf16) {
    return fmt::format("q is {}; f16 and bf16 are accepted", name(problem.q_dtype));
  }
  if (problem.sequences.empty()) return "there is no sequence; one at least is accepted";
  const std::int64_t queries = longest_queries(problem), most = std::min(kMostQueries, most_rows(problem));
  if (queries > most) {
    return fmt::format(
        "sequences have up to {} queries; up to {} are accepted{}", queries, most,
        most < kMostQueries ? fmt::format(" beside head dimensions above {}", kMostDimOfTwoFragments) : "");
  }
  if (options.block_mask && options.block_mask->is_from_lists()) {
    return "block_mask is made of lists; masks by a mask_mod are accepted";
  }
  return {};
}

std::vector<ForwardMmaConfig> decode_mma_configs(const AttentionProblem& problem, const KernelMods& mods,
                                                 const AttentionTensors& tensors, std::int64_t shared_memory_bytes) {
  ForwardMmaConfig all = forward_config(problem, mods, tensors, kNvidia);
  all.by_sequence = by_sequence(problem);
  all.own_blocks = true;
  all.bounded = !mods.mask.empty() && expr::KeyBounds(mods.mask).bounds();
  all.row_waves = 1;
  std::vector<ForwardMmaConfig> configs = configs_of(with_rows(all, problem, most_rows(problem)), shared_memory_bytes);
  // One fragment of rows takes fewer registers and less memory. Its tiles read the same keys at the same time, through
  // the L2 cache.
  const int fragment = all.shape().rows;
  if (with_rows(all, problem, most_rows(problem)).row_fragments == 1 || longest_queries(problem) > fragment)
    return configs;
  std::ranges::copy(configs_of(with_rows(all, problem, fragment), shared_memory_bytes), std::back_inserter(configs));
  return configs;
}

int decode_mma_tiles(const AttentionProblem& problem, const ForwardMmaConfig& config) {
  const auto of_kv_head = (problem.group() + config.packed_heads - 1) / config.packed_heads;
  return static_cast<int>(problem.kv_heads * of_kv_head);
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

namespace {

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
constexpr MemoryTimes kHopperTimes = {9e-6, 4.3e12, 4.2e12};

/// Bytes of keys and values, as long as sequences may be.
double bytes_of(const AttentionProblem& problem, const ForwardMmaConfig& config, const DecodeKeys& keys) {
  const double dims = static_cast<double>(problem.qk_dim + problem.v_dim);
  return static_cast<double>(keys.units * config.kv_block * problem.kv_heads) * dims * config.element_bytes();
}

std::optional<Prediction> predict(const AttentionProblem& problem, const ForwardMmaConfig& config,
                                  const DecodeKeys& keys, const device::CudaCaps& caps) {
  if (caps.major != 9) return {};
  const double bytes = bytes_of(problem, config, keys);
  const double tiles_of_kv_head =
      static_cast<double>(decode_mma_tiles(problem, config)) / static_cast<double>(problem.kv_heads);
  const double rate = problem.page_rows > 0 ? kHopperTimes.paged_per_second : kHopperTimes.bytes_per_second;
  // Tiles of the same keys read them through the L2 cache; not measured. A product of 16 bits has as many flops a byte
  // as rows.
  return Prediction{.seconds = kHopperTimes.launch + tiles_of_kv_head * bytes / rate,
                    .flops = bytes * tiles_of_kv_head * config.rows(),
                    .bytes = bytes};
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
  return fmt::format("{} rows of {} heads x {} keys, rings of {}", config.live_rows, config.packed_heads,
                     config.kv_block, config.stages);
}

Choice choice_of(const AttentionProblem& problem, ForwardMmaConfig config, const KernelMods& mods,
                 const Bindings& bindings, const device::CudaCaps& caps) {
  const DecodeKeys keys = decode_mma_keys(problem, mods, bindings, config);
  config.overlaps = overlaps(problem, config, keys, caps);
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
  plan.workspace_bytes = shared::decode_mma_workspace(config, ctas).bytes;
  plan.predicted = predict(problem, config, keys, caps);
  plan.forms = {.score = portable::describe_score(mods),
                .mask = decode_mma_mask_form(mods),
                .weight = mods.weight.empty() ? "" : "multiplied for each pair"};
  return choice;
}

}  // namespace

std::vector<Choice> decode_mma(const AttentionProblem& problem, const AttentionTensors& tensors,
                               const Bindings& bindings, const device::CudaCaps& caps, const RowsOf& rows_of) {
  const KernelMods mods = portable_mods(problem);
  const std::vector<ForwardMmaConfig> configs = decode_mma_configs(problem, mods, tensors, caps.shared_memory_bytes);
  std::vector<Choice> choices;
  for (const ForwardMmaConfig& config : configs) choices.push_back(choice_of(problem, config, mods, bindings, caps));
  if (choices.empty()) {
    throw Error(ErrorCode::unsupported,
                fmt::format("no kernel of decode_mma fits into {} bytes of shared memory", caps.shared_memory_bytes));
  }
  check_density(problem, decode_mma_keys(problem, mods, bindings, configs.front()), rows_of);
  const std::string first = describe(choices.front().plan.part<ForwardMmaConfig>());
  for (Choice& choice : choices) {
    for (const Choice& other : choices) {
      if (&other <= &choice) continue;
      choice.plan.rejected.push_back(fmt::format("{}: fewer bytes are under way, or fewer waves compute, than with {}",
                                                 describe(other.plan.part<ForwardMmaConfig>()), first));
    }
  }
  return choices;
}

}  // namespace heddle::plan
