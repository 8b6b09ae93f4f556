#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <iterator>
#include <optional>
#include <utility>

#include "backend/portable/portable_refuses.h"
#include "expr/key_bounds.h"
#include "families/decode_mma/decode_mma.h"
#include "families/decode_mma/decode_mma_rings.h"
#include "families/decode_mma/decode_mma_shared_keys.h"
#include "families/decode_mma/shared/decode_mma_memory.h"
#include "plan/access/tma_refuses.h"
#include "plan/tiles/packed_heads.h"

namespace heddle::plan {
namespace {

using problem::AttentionProblem;
using shared::ForwardMmaConfig;

constexpr std::int64_t kMostDim = 256;
/// Head dimensions of keys whose first columns are the values: multi-head latent attention. Waves share the columns of
/// o.
constexpr std::int64_t kMostWideDim = 576, kMostWideValueDim = 512, kWideValueStep = 64;
constexpr int kMostRows = 64;
/// Sums of O and queries of two fragments of rows take all registers of a thread where head dims are larger.
constexpr std::int64_t kMostDimOfTwoFragments = 128;

bool has_16_bits(DType dtype) { return dtype == DType::f16 || dtype == DType::bf16; }

std::string refuse_types(const AttentionProblem& problem) {
  const DType q = problem.q_dtype, k = problem.k_dtype, v = problem.v_dtype;
  const bool alike = has_16_bits(q) && k == q && v == q;
  if (!alike && !keys_become_halves(problem)) {
    return fmt::format(
        "q, k, v are {}, {}, {}; f16 or bf16 for all is accepted, or k and v of e4m3 or e5m2 beside q of f16, bf16, "
        "e4m3 "
        "or e5m2",
        name(q), name(k), name(v));
  }
  const std::array accepted = {DType::f16, DType::bf16, DType::f32, DType::f64};
  if (std::ranges::find(accepted, problem.o_dtype) == accepted.end()) {
    return fmt::format("o is {}; f16, bf16, f32 and f64 are accepted", name(problem.o_dtype));
  }
  return {};
}

/// Values are the first columns of the keys, in the same memory.
bool values_are_keys(const AttentionTensors& tensors) {
  const ConstTensorView &k = tensors.k, &v = tensors.v;
  if (k.data != v.data || k.dtype != v.dtype || v.shape[3] > k.shape[3]) return false;
  for (int axis = 0; axis < 3; ++axis) {
    if (k.shape[axis] > 1 && k.strides[axis] != v.strides[axis]) return false;
  }
  return true;
}

std::int64_t larger_dim(const AttentionProblem& problem) { return std::max(problem.qk_dim, problem.v_dim); }
/// One wave has no room for sums of so many columns.
bool is_wide(const AttentionProblem& problem) { return larger_dim(problem) > kMostDim; }

std::string refuse_dims(const AttentionProblem& problem, const AttentionTensors& tensors) {
  if (!is_wide(problem)) return {};
  const bool fits =
      problem.qk_dim <= kMostWideDim && problem.v_dim <= kMostWideValueDim && problem.v_dim % kWideValueStep == 0;
  if (fits && values_are_keys(tensors)) return {};
  return fmt::format(
      "q and k have head dimension {}, and v {}{}; 1 to {} are accepted, or up to {} where v is the first columns of k "
      "in the same "
      "memory, a multiple of {} up to {}",
      problem.qk_dim, problem.v_dim, fits ? ", which is not in k's memory" : "", kMostDim, kMostWideDim, kWideValueStep,
      kMostWideValueDim);
}

/// At least 1: rows without a query are stored, too.
std::int64_t longest_queries(const AttentionProblem& problem) {
  std::int64_t longest = 1;
  for (const Sequence& sequence : problem.sequences) longest = std::max(longest, sequence.q_len);
  return longest;
}

/// Rows of one wave.
int most_rows_of_wave(const AttentionProblem& problem) {
  return larger_dim(problem) > kMostDimOfTwoFragments ? 16 : 32;
}

/// Query heads that share a tile of up to `most` rows, of `queries` each: a power of two.
int packed_heads_of(const AttentionProblem& problem, std::int64_t most, std::int64_t queries) {
  const auto group = std::bit_ceil(static_cast<std::uint64_t>(problem.group()));
  const auto fit = std::bit_floor(static_cast<std::uint64_t>(most / queries));
  return static_cast<int>(std::min(group, fit));
}

/// Rows past the sequences' own must be found, or their tiles stored for no query.
bool by_sequence(const AttentionProblem& problem) {
  const auto differs = [&](const Sequence& sequence) { return sequence.q_len != problem.q_rows; };
  return problem.page_rows > 0 || problem.packed || problem::sequences_differ(problem) ||
         std::ranges::any_of(problem.sequences, differs);
}

/// With waves for the rows of a tile, of which one has up to `of_wave`.
ForwardMmaConfig with_waves(ForwardMmaConfig config, int of_wave) {
  const int fragment = config.shape().rows;
  config.row_fragments = config.live_rows > fragment ? of_wave / fragment : 1;
  const int of_waves = config.row_fragments * fragment;
  config.row_waves = config.live_rows <= of_waves ? 1 : config.live_rows <= 2 * of_waves ? 2 : 4;
  // Queries have no room in registers beside so many sums.
  config.shared_queries = config.row_fragments == 2 || std::max(config.qk_dim, config.v_dim) > kMostDimOfTwoFragments;
  return config;
}

/// With as many heads in a tile as make up to `most` rows, of which a wave has up to `of_wave`.
ForwardMmaConfig with_rows(ForwardMmaConfig config, const AttentionProblem& problem, std::int64_t most, int of_wave) {
  const std::int64_t queries = longest_queries(problem);
  config.packed_heads = packed_heads_of(problem, most, queries);
  config.live_rows = static_cast<int>(queries * config.packed_heads);
  return with_waves(config, of_wave);
}

/// Where waves share the columns of o: most rows first, and four waves of keys, or two where memory has no room for
/// their blocks. In chunks one fragment of rows a wave comes first: kernels of two spill 1600 bytes where chunks end.
std::vector<ForwardMmaConfig> wide_configs(const ForwardMmaConfig& all, const AttentionProblem& problem,
                                           const device::CudaCaps& caps) {
  constexpr int kMostSums = 128;  // of a thread
  std::vector<ForwardMmaConfig> configs =
      decode_mma_warpgroup_rings(with_rows(all, problem, kMostRows, 16), Warpgroups::one_ring, caps);
  const std::array<int, 3> rows = all.chunked() ? std::array{32, 16, kMostRows} : std::array{kMostRows, 32, 16};
  for (const int most : rows) {
    if (longest_queries(problem) > most) continue;
    ForwardMmaConfig config = with_rows(all, problem, most, 16);
    config.row_fragments = config.live_rows > 32 ? 2 : 1;  // few rows occupy more waves
    config.row_waves = config.live_rows > 16 ? 2 : 1;
    config.blocks = shared::StepBlocks::both_ways;
    config.ctas = 1;
    for (const int key_waves : {4, 2}) {
      config.key_waves = key_waves;
      config.kv_block = key_waves * all.shape().columns;
      for (config.stages = 3; config.stages > 1; --config.stages) {
        const int sums = config.row_fragments * config.wave_columns() / 2;  // 16 rows of two columns
        if (sums > kMostSums || shared::decode_mma_memory(config).bytes > caps.shared_memory_bytes) continue;
        if (std::ranges::find(configs, config) == configs.end()) configs.push_back(config);
      }
    }
  }
  return configs;
}

/// Kernels for each size of units that pays. A unit of 8 bits takes memory half as long as one of 16, and a wave
/// computes it no faster, so a wave then has twice the keys, if there are two such units for each multiprocessor and a
/// wave's keys lie in one page or in two. Beside the sums of two fragments of rows there are no registers for it.
std::vector<ForwardMmaConfig> of_all_units(const ForwardMmaConfig& config, const AttentionProblem& problem,
                                           const device::CudaCaps& caps) {
  const int fragment = config.shape().columns, twice = 2 * fragment;
  std::vector<ForwardMmaConfig> configs = decode_mma_rings(config, fragment, caps.shared_memory_bytes);
  if (!config.converts() || config.row_fragments > 1 ||
      (config.page_rows % twice != 0 && config.page_rows != fragment)) {
    return configs;
  }
  std::vector<ForwardMmaConfig> larger = decode_mma_rings(config, twice, caps.shared_memory_bytes);
  if (larger.empty()) return configs;
  const std::int64_t tiles = decode_mma_tiles(problem, config);
  if (decode_mma_units(problem, larger.front()) * tiles >= 2 * caps.multiprocessors) std::swap(configs, larger);
  std::ranges::copy(larger, std::back_inserter(configs));
  return configs;
}

/// Tiles of 64 rows by wgmma where products of mma.sync take longer than memory does, or waves would share a tile's
/// rows.
std::vector<ForwardMmaConfig> of_many_rows(const ForwardMmaConfig& all, const AttentionProblem& problem,
                                           const device::CudaCaps& caps) {
  constexpr std::int64_t kRowsOfMemory = 42;  // of a head of keys
  const std::int64_t queries = longest_queries(problem);
  if (problem.group() * queries < kRowsOfMemory && queries <= most_rows_of_wave(problem)) return {};
  return decode_mma_warpgroup_rings(with_rows(all, problem, kMostRows, all.shape().rows), Warpgroups::own_rings, caps);
}

/// They go first unless a CTA has so few units that the end of its tile counts more, and there are tiles of one wave's
/// rows (docs/notes/decode.md).
bool wgmma_goes_first(const AttentionProblem& problem, const ForwardMmaConfig& config, const device::CudaCaps& caps) {
  constexpr std::int64_t kFewUnits = 12;  // of 128 keys; of a CTA
  if (longest_queries(problem) > most_rows_of_wave(problem)) return true;
  const std::int64_t units = decode_mma_units(problem, config) * decode_mma_tiles(problem, config);
  return units * config.kv_block >= kFewUnits * 128 * caps.multiprocessors;
}

/// Tiles that are tried, best first: the most rows of one, and of each of its waves. Tiles of the same keys read them
/// at the same time, through the L2 cache, so tiles of one fragment of rows come first: two of them are faster than one
/// of two fragments, and four than one that waves share (docs/notes/decode.md).
std::vector<std::pair<int, int>> rows_tried(const AttentionProblem& problem, const ForwardMmaConfig& all) {
  const int of_wave = most_rows_of_wave(problem), fragment = all.shape().rows;
  return {
      {fragment, fragment}, {of_wave, of_wave}, {2 * fragment, fragment}, {kMostRows, of_wave}, {kMostRows, fragment}};
}

/// The most rows of a tile of keys that sequences share: those of up to so many sequences.
constexpr int kMostPrefixSequences = 32;
constexpr std::int64_t kMostOwnQueries = 16;  // of a sequence that shares keys
int prefix_sequences_of(const AttentionProblem& problem, const ForwardMmaConfig& own, int most_rows) {
  const auto of_batch = std::bit_ceil(static_cast<std::uint64_t>(problem.batch));
  const auto fit = std::bit_floor(static_cast<std::uint64_t>(most_rows / own.live_rows));
  return static_cast<int>(std::min<std::uint64_t>({of_batch, fit, kMostPrefixSequences}));
}

/// Kernels of own keys behind a kernel of shared keys, which has 128 rows of several sequences, or 64 of more columns
/// than a thread has registers for beside 128. Two CTAs of four waves on a multiprocessor come before one of eight:
/// tiles are short, and one CTA reads while the other one ends a tile and begins the next.
std::vector<ForwardMmaConfig> configs_behind_shared_keys(const ForwardMmaConfig& all, const AttentionProblem& problem,
                                                         const AttentionTensors& tensors,
                                                         const device::CudaCaps& caps) {
  const int rows = larger_dim(problem) > kMostDimOfTwoFragments ? kMostRows : 2 * kMostRows;
  constexpr std::size_t kMostTried = 2;
  const int fragment = all.shape().rows;
  ForwardMmaConfig config = with_rows(all, problem, fragment, fragment);
  config.prefix_sequences = prefix_sequences_of(problem, config, rows);
  config.shared_tiles = shared::SharedTiles::elsewhere;
  if (!can_share_alone(config, tensors, caps)) return {};
  std::vector<ForwardMmaConfig> configs = decode_mma_rings(config, fragment, caps.shared_memory_bytes);
  std::ranges::stable_partition(configs,
                                [](const ForwardMmaConfig& each) { return each.ctas == 2 && each.waves() == 4; });
  configs.resize(std::min(configs.size(), kMostTried));
  return configs;
}

/// Kernels whose tiles of shared keys have rows of several sequences, best first. 32 rows read keys half as often from
/// the L2 cache as 16 do, and one wave has them. By wgmma each sequence's own tile takes longer to end, so its kernels
/// come last. Two kernels, one of shared keys and one of own keys, come before all of these
/// (docs/notes/decode_prefixes.md).
std::vector<ForwardMmaConfig> prefixed_configs(ForwardMmaConfig all, const AttentionProblem& problem,
                                               const AttentionTensors& tensors, const device::CudaCaps& caps) {
  all.by_sequence = true;
  const int fragment = all.shape().rows;
  std::vector<ForwardMmaConfig> configs = configs_behind_shared_keys(all, problem, tensors, caps), by_wgmma;
  for (const int most : {2 * fragment, kMostRows, fragment}) {
    ForwardMmaConfig config = with_rows(all, problem, fragment, fragment);
    config.prefix_sequences = prefix_sequences_of(problem, config, most);
    config.live_rows *= config.prefix_sequences;
    config = with_waves(config, std::min(most, most_rows_of_wave(problem)));
    if (config.prefix_sequences < 2) continue;
    if (most == kMostRows && config.live_rows > 2 * fragment) {
      by_wgmma = decode_mma_warpgroup_rings(config, Warpgroups::own_rings, caps);
    }
    for (const ForwardMmaConfig& each : decode_mma_rings(config, fragment, caps.shared_memory_bytes)) {
      if (std::ranges::find(configs, each) == configs.end()) configs.push_back(each);
    }
  }
  std::ranges::copy(by_wgmma, std::back_inserter(configs));
  return configs;
}

/// Waves that share the keys of a unit in chunks, whose bits depend on it: as many as have room beside 16 rows.
int waves_of_chunks(ForwardMmaConfig config, const AttentionProblem& problem, const device::CudaCaps& caps) {
  config.live_rows = config.shape().rows;
  config = with_waves(config, config.live_rows);
  if (is_wide(problem)) config.blocks = shared::StepBlocks::both_ways;
  config.stages = 2;
  for (config.key_waves = is_wide(problem) ? 4 : 8; config.key_waves > 1; config.key_waves /= 2) {
    config.kv_block = config.key_waves * config.shape().columns;
    if (shared::decode_mma_memory(config).bytes <= caps.shared_memory_bytes) break;
  }
  return config.key_waves;
}

/// Chunks of a sequence: as many as CTAs that one sequence alone would occupy. More take longer to merge.
int chunks_of(const AttentionProblem& problem, const device::CudaCaps& caps) {
  constexpr std::uint64_t kFewest = 8;
  const auto gangs = static_cast<std::uint64_t>(caps.multiprocessors / std::max<std::int64_t>(1, problem.kv_heads));
  return static_cast<int>(std::clamp<std::uint64_t>(std::bit_floor(gangs), kFewest, shared::kMostChunks));
}

/// Tiles of one fragment of rows, of as many queries each as there is room for beside all heads of a group.
ForwardMmaConfig with_one_fragment(ForwardMmaConfig config, const AttentionProblem& problem) {
  const int rows = config.shape().rows;
  if (longest_queries(problem) <= rows) return with_rows(config, problem, rows, rows);
  config.packed_heads = packed_heads_of(problem, rows, 1);
  config.tile_queries = rows / config.packed_heads;
  config.live_rows = rows;
  return with_waves(config, rows);
}

/// The one kernel whose rows' bits do not depend on the batch, if one fits: the same waves of keys, and 16 rows a tile
/// or fewer, however many queries there are. What the compiler makes of it does not count, nor how many units there
/// are.
std::vector<ForwardMmaConfig> chunked_configs(ForwardMmaConfig all, const AttentionProblem& problem,
                                              const device::CudaCaps& caps) {
  all.chunks = chunks_of(problem, caps);
  std::vector<ForwardMmaConfig> configs;
  if (is_wide(problem)) {
    configs = wide_configs(all, problem, caps);
    if (!configs.empty() && configs.front().by_warpgroups()) return {configs.front()};  // of any number of rows
  } else {
    const ForwardMmaConfig config = with_one_fragment(all, problem);
    configs = decode_mma_rings(config, config.shape().columns, caps.shared_memory_bytes);
  }
  const auto alike = std::ranges::find(configs, waves_of_chunks(all, problem, caps), &ForwardMmaConfig::key_waves);
  if (alike != configs.end()) return {*alike};
  if (!configs.empty()) configs.resize(1);  // queries too many for it
  return configs;
}

}  // namespace

std::string decode_mma_refuses(const AttentionProblem& problem, const AttentionTensors& tensors,
                               const AttentionOptions& options, const device::CudaCaps& caps) {
  for (std::string reason : {portable_device_refuses(caps), refuse_types(problem), refuse_dims(problem, tensors),
                             portable_refuses_values(problem, options)}) {
    if (!reason.empty()) return reason;
  }
  if (problem.sequences.empty()) return "there is no sequence; one at least is accepted";
  const std::int64_t queries = longest_queries(problem);
  if (queries > kMostRows) {
    return fmt::format("sequences have up to {} queries; up to {} are accepted", queries, kMostRows);
  }
  if (options.block_mask && options.block_mask->is_from_lists()) {
    return "block_mask is made of lists; masks by a mask_mod are accepted";
  }
  return {};
}

std::string decode_mma_prefixes(const AttentionProblem& problem, const ForwardMmaConfig& config) {
  if (!problem.with_prefixes) return {};
  if (config.prefixed()) {
    return fmt::format("keys that sequences of a prefix_group share are read once for those of {} neighbours{}",
                       config.prefix_sequences,
                       config.shares_elsewhere() ? ", by a kernel that runs before that of their own keys" : "");
  }
  const std::string_view reason = problem.batch_invariant ? "batch_invariant is true"
                                  : is_wide(problem)      ? "values are the first columns of the keys"
                                  : problem.batch < 2     ? "there is one sequence"
                                  : longest_queries(problem) > kMostOwnQueries
                                      ? "sequences have more than 16 queries"
                                      : "each sequence's keys are read for it alone";
  return fmt::format("prefix_group is not used: {}", reason);
}

namespace {

/// The kernels, best first, as if threads copied all keys.
std::vector<ForwardMmaConfig> with_copies(const AttentionProblem& problem, const KernelMods& mods,
                                          const AttentionTensors& tensors, const AttentionOptions& options,
                                          const device::CudaCaps& caps) {
  ForwardMmaConfig all = forward_config(problem, mods, tensors, options, kNvidia);
  all.by_sequence = by_sequence(problem);
  all.own_blocks = true;
  all.bounded = !mods.mask.empty() && expr::KeyBounds(mods.mask).bounds();
  if (problem.batch_invariant) return chunked_configs(all, problem, caps);
  std::vector<ForwardMmaConfig> configs;
  if (is_wide(problem)) return wide_configs(all, problem, caps);
  if (problem.with_prefixes && problem.batch > 1 && longest_queries(problem) <= kMostOwnQueries) {
    configs = prefixed_configs(all, problem, tensors, caps);
  }
  const std::vector<ForwardMmaConfig> by_wgmma = of_many_rows(all, problem, caps);
  const bool is_first = !by_wgmma.empty() && wgmma_goes_first(problem, by_wgmma.front(), caps);
  if (is_first) std::ranges::copy(by_wgmma, std::back_inserter(configs));
  for (const auto& [most, own] : rows_tried(problem, all)) {
    if (longest_queries(problem) > most) continue;
    for (const ForwardMmaConfig& config : of_all_units(with_rows(all, problem, most, own), problem, caps)) {
      if (std::ranges::find(configs, config) == configs.end()) configs.push_back(config);
    }
  }
  if (!is_first) std::ranges::copy(by_wgmma, std::back_inserter(configs));
  return configs;
}

/// TMA brings whole blocks of keys, to the end of a run that the mask leaves. Rows of a block before a run would not
/// become zeros.
bool come_in_boxes(const ForwardMmaConfig& config, const Expr& mask, const ConstTensorView& k,
                   const std::optional<ConstTensorView>& k_rest) {
  if (!config.takes_turns() || config.prefixed() || config.page_rows % config.block_keys() != 0) return false;
  if (config.bounded && config.run_step() > 1 && !expr::KeyBounds(mask).leaves_first_keys()) return false;
  for (int axis = 0; k_rest && axis < 3; ++axis) {
    if (k_rest->shape[axis] != k.shape[axis]) return false;
  }
  return tma_refuses(k).empty() && (!k_rest || tma_refuses(*k_rest).empty());
}

}  // namespace

std::vector<ForwardMmaConfig> decode_mma_configs(const AttentionProblem& problem, const KernelMods& mods,
                                                 const AttentionTensors& tensors, const AttentionOptions& options,
                                                 const device::CudaCaps& caps) {
  std::vector<ForwardMmaConfig> configs = with_copies(problem, mods, tensors, options, caps);
  for (ForwardMmaConfig& config : configs) config.boxes = come_in_boxes(config, mods.mask, tensors.k, options.k_rest);
  return configs;
}

int decode_mma_tiles(const AttentionProblem& problem, const ForwardMmaConfig& config) {
  const auto of_kv_head = (problem.group() + config.packed_heads - 1) / config.packed_heads;
  return static_cast<int>(problem.kv_heads * of_kv_head) * decode_mma_query_tiles(problem, config);
}

int decode_mma_query_tiles(const AttentionProblem& problem, const ForwardMmaConfig& config) {
  if (config.tile_queries == 0) return 1;
  return static_cast<int>((longest_queries(problem) + config.tile_queries - 1) / config.tile_queries);
}

}  // namespace heddle::plan
