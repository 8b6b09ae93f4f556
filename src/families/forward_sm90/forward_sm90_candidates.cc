#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "expr/node.h"
#include "families/forward_sm90/forward_sm90.h"
#include "families/forward_sm90/shared/forward_sm90_config.h"
#include "plan/access/kernel_types.h"
#include "plan/tiles/packed_heads.h"
#include "plan/tiles/schedule.h"
#include "shared/philox.h"

namespace heddle::plan {
namespace {

using problem::AttentionProblem;
using shared::ForwardSm90Config;

/// f16: the powers of two by which a row's largest exponential exceeds 1 in safe mode. They let small exponentials keep
/// their bits if a weight_mod takes the large ones out. Times the weight, the largest stays below 2^15.
int safe_headroom(const shared::ForwardSm90Config& config, double weight_bound) {
  constexpr int kMost = 10, kUnknown = 7;
  if (config.dropped) return kMost;
  if (!std::isfinite(weight_bound)) return kUnknown;
  if (weight_bound == 0) return kMost;
  return std::clamp(15 - static_cast<int>(std::ceil(std::log2(weight_bound))), 0, kMost);
}

std::string refuses_packing(const shared::ForwardSm90Config& config, const problem::AttentionProblem& problem,
                            const BlockMask* callers) {
  if (config.warpgroup_heads() > 1) {
    if (config.scores == shared::ScoreForm::distant) {
      return fmt::format(
          "packs no {} heads into a warpgroup, since what score_mod adds for each distance is tabulated for one",
          config.warpgroup_heads());
    }
    if (callers != nullptr && callers->is_from_lists() && !callers->shared_by_heads()) {
      return fmt::format("packs no {} heads into a warpgroup, since the lists of block_mask are each head's own",
                         config.warpgroup_heads());
    }
  }
  if (const std::int64_t tiles = count_tiles(problem, config.tile()); tiles > shared::kMaxTiles) {
    return fmt::format("packed, queries make {} tiles; up to {} are accepted", tiles, shared::kMaxTiles);
  }
  return {};
}

/// The least shared memory of a kernel with the mods' table: among kernels of these head dims, with other buffers as
/// small as they can be. misfit() adds the problem's own needs for each kernel.
int least_bytes_with_table(const AttentionProblem& problem, const KernelMods& mods, bool fp8) {
  const int qk = static_cast<int>(problem.qk_dim), v = static_cast<int>(problem.v_dim);
  int least = std::numeric_limits<int>::max();
  for (const ForwardSm90Kernel& kernel : forward_sm90_kernels(fp8)) {
    if (!(dims_of(kernel) == native_dims({qk, v}, fp8))) continue;
    const ForwardSm90Config config = with_room_for_key_numbers(config_with(kernel.config(qk, v), mods));
    least = std::min(least, shared::forward_sm90_memory(config).bytes);
  }
  return least;
}

}  // namespace

shared::ForwardSm90Config config_for(const ForwardSm90Kernel& kernel, const AttentionProblem& problem,
                                     const KernelMods& mods, const TensorAccess& access, bool streams, int packed) {
  ForwardSm90Config config = kernel.config(static_cast<int>(problem.qk_dim), static_cast<int>(problem.v_dim));
  config.packed_queries = packed;
  config.f16 = problem.q_dtype == DType::f16;
  config.q_fp8 = fp8_of(problem.q_dtype);
  config.k_fp8 = fp8_of(problem.k_dtype);
  config.v_fp8 = fp8_of(problem.v_dtype);
  if (config.fp8()) config.weight_exponent = weight_exponent(problem, mods);
  config.lse = problem.with_lse;
  config.max_scores = problem.with_max_scores;
  config.lse_rest = problem.with_lse_rest;
  config.by_sequence = problem.page_rows > 0 || problem::sequences_differ(problem);
  config.device_lengths = problem.device_lengths;
  config.listed_pages = problem.listed_pages && access.page_rows > 0;
  config.sinks = problem.with_sinks;
  config.normalizer = normalizer_of(problem);
  config = config_with(config_with(config, mods), access);
  if (mods.has_key_numbers()) return with_room_for_key_numbers(config);
  return streams ? with_streamed_tiles(config, mods.streamed->dtype).value_or(config) : config;
}

shared::ForwardSm90Config config_with(shared::ForwardSm90Config config, const KernelMods& mods) {
  config.masked = !mods.mask.empty();
  // A thread's two rows are two words, of 128 keys at most.
  config.mask = config.kv_block > 128 ? shared::MaskForm::direct : mods.mask_form;
  if (mods.stores_mask && config.mask != shared::MaskForm::direct && !config.packs()) {
    config.mask = shared::MaskForm::stored;
  }
  config.mask_range = config.masks_by_distance() && !mods.mask_most.empty();
  config.scores = mods.form;
  config.key_factor = !mods.key_factor.empty();
  config.key_term = !mods.key_term.empty();
  config.table_entries = mods.table_entries;
  config.descending = mods.descending;
  config.capped = mods.cap != 0;
  // Draws are packed as weights of 16 bits are.
  config.dropped = mods.drops.has_value() && !config.fp8() && config.kv_block % shared::kKeysOfDraw == 0;
  config.weighted = !mods.weight.empty() && !config.dropped;
  const std::vector<Expr> computed = mods.of_kernel(config.stores_mask());
  const auto reads = [&](expr::Leaf index) {
    return std::ranges::any_of(computed, [&](const Expr& mod) {
      const bool is_place = same(mod, mods.places.query) || same(mod, mods.places.key);
      return !mod.empty() && !is_place && mod.node()->uses.has(index);
    });
  };
  config.placed_queries = !mods.places.query.empty() && reads(expr::Leaf::q_idx);
  config.placed_keys = !mods.places.key.empty() && reads(expr::Leaf::kv_idx);
  if (config.f16 && !mods.weight.empty()) config.safe_headroom = safe_headroom(config, mods.weight_bound);
  return config;
}

shared::ForwardSm90Config config_with(ForwardSm90Config config, const TensorAccess& access) {
  config.page_rows = access.page_rows;
  config.o_type = access.o_type;
  config.odd_o = access.odd_o;
  return config;
}

std::optional<ForwardSm90Config> with_streamed_tiles(ForwardSm90Config config, DType dtype) {
  config.streamed_bytes = static_cast<int>(size_of(dtype));
  // A tile of f32 is so long under way that it is asked for as its halves have been read.
  const bool halves = dtype == DType::f32 && config.kv_block % (2 * config.streamed_panel_columns()) == 0;
  config.streamed_parts = halves ? 2 : 1;
  // Measured (docs/notes/hopper_mods.md): a second tile in flight gains nothing that a second buffer of queries does
  // not gain more of; at least one of each kind there must be.
  struct Given {
    int tiles, stages, q_buffers, o_panels;
  };
  const int stages = config.stages, fewer = std::min(2, stages), q = config.q_buffers, o = config.o_panels;
  for (const Given& given : std::array<Given, 8>{{{2, stages, q, o},
                                                  {2, fewer, q, o},
                                                  {1, stages, q, o},
                                                  {1, fewer, q, o},
                                                  {1, fewer, q, 1},
                                                  {2, fewer, 1, o},
                                                  {2, fewer, 1, 1},
                                                  {1, fewer, 1, 1}}}) {
    config.streamed_stages = given.tiles * config.streamed_parts;
    config.stages = given.stages;
    config.q_buffers = given.q_buffers;
    config.o_panels = given.o_panels;
    if (shared::forward_sm90_memory(config).bytes <= kSm90SharedMemory) return config;
  }
  return {};
}

ForwardSm90Config with_room_for_key_numbers(ForwardSm90Config config) {
  struct Given {
    int stages, q_buffers, o_panels;
  };
  const int stages = config.stages, fewer = std::min(2, stages), q = config.q_buffers, o = config.o_panels;
  for (const Given& given : std::array<Given, 6>{
           {{stages, q, o}, {fewer, q, o}, {stages, q, 1}, {fewer, q, 1}, {fewer, 1, o}, {fewer, 1, 1}}}) {
    config.stages = given.stages;
    config.q_buffers = given.q_buffers;
    config.o_panels = given.o_panels;
    if (shared::forward_sm90_memory(config).bytes <= kSm90SharedMemory) break;
  }
  return config;
}

std::string refuses_key_numbers(const AttentionProblem& problem, const KernelMods& mods) {
  const bool fp8 = size_of(problem.k_dtype) == 1;
  if (fp8 && problem.page_rows > 0) {
    return "of 8 bits in pages one of the producer's idle warps transposes values, and the other gathers";
  }
  if (!mods.key_factor.empty() && !mods.key_term.empty() && mods.table_entries > 0) {
    return "a factor, a term and a place in a table are three numbers of a key, and two are read";
  }
  const std::vector<Expr> numbers = mods.of_keys();
  const auto reads_head = [](const Expr& e) { return !e.empty() && e.node()->uses.has(expr::Leaf::h); };
  if (has_few_queries(problem) && std::ranges::any_of(numbers, reads_head)) {
    return "packed heads share the numbers of their keys, and these read h";
  }
  if (mods.table_entries == 0) return {};
  const int bytes = least_bytes_with_table(problem, mods, fp8);
  if (bytes > kSm90SharedMemory) {
    return fmt::format("a table of {} entries needs {} bytes of shared memory of {} at least", mods.table_entries,
                       bytes, kSm90SharedMemory);
  }
  return {};
}

std::string misfit(const ForwardSm90Config& config, const AttentionProblem& problem, const BlockMask* callers) {
  const std::int64_t last_key = std::int64_t{shared::kMaxKvBlocks} * config.kv_block;
  if (problem.kv_rows > last_key) return fmt::format("takes up to {} rows of k", last_key);
  const int bytes = shared::forward_sm90_memory(config).bytes;
  if (bytes > kSm90SharedMemory) {
    const std::string table =
        config.table_entries == 0
            ? std::string()
            : fmt::format(" with score_mod's table of {} entries, which is there twice", config.table_entries);
    return fmt::format("needs {} bytes of shared memory of {}{}", bytes, kSm90SharedMemory, table);
  }
  if (config.gathers() && config.warpgroups == 3) {
    return fmt::format("gathers rows, which takes more than the {} registers of its producer",
                       config.producer_registers());
  }
  if (config.packs()) {
    if (std::string reason = refuses_packing(config, problem, callers); !reason.empty()) return reason;
  }
  if (callers == nullptr) return {};
  const BlockSize block = callers->block();
  if (block.q % shared::kWarpgroupRows != 0) {
    return fmt::format("a warpgroup's {} queries do not divide the {} of a block of block_mask", shared::kWarpgroupRows,
                       block.q);
  }
  if (block.kv % config.kv_block != 0) {
    return fmt::format("{} keys do not divide the {} of a block of block_mask", config.kv_block, block.kv);
  }
  return {};
}

std::string misfit(const ForwardSm90Config& config, const Places& places) {
  if (places.key.empty() || places.key_rows % config.kv_block == 0) return {};
  return fmt::format("{} keys do not divide the {} of a granule, whose positions mods read", config.kv_block,
                     places.key_rows);
}

std::vector<Setting> forward_sm90_settings(const ForwardSm90Config& config) {
  std::vector<Setting> settings = settings_of(config);
  settings.push_back({"shared_memory_bytes", shared::forward_sm90_memory(config).bytes});
  return settings;
}

std::string describe_weight(const ForwardSm90Config& config, const KernelMods& mods) {
  if (config.dropped) {
    return fmt::format("dropped: a draw k of 2^{} against a threshold masks a packed weight",
                       shared::kRandomUniformBits);
  }
  if (!config.weighted) return {};
  const std::string_view why = !mods.drops    ? "it is no draw that keeps or drops"
                               : config.fp8() ? "four weights of 8 bits share a register"
                                              : "64 does not divide the keys of a tile";
  return fmt::format("multiplied for each pair: {}", why);
}

}  // namespace heddle::plan
