#include "families/decode_mma/decode_mma_candidates.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <functional>
#include <iterator>
#include <tuple>

#include "backend/portable/portable_refuses.h"
#include "expr/key_bounds.h"
#include "families/decode_mma/shared/decode_mma_memory.h"
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

}  // namespace heddle::plan
