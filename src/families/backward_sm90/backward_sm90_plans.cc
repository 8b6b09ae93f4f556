#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <utility>

#include "base/environment.h"
#include "families/backward_sm90/backward_reads.h"
#include "families/backward_sm90/backward_sm90.h"
#include "families/backward_sm90/shared/backward_wide_memory.h"
#include "families/backward_sm90/tile_shares.h"
#include "plan/access/kernel_types.h"
#include "plan/backward_refuses.h"
#include "plan/hopper/sm90_chip.h"
#include "plan/hopper/sm90_refuses.h"
#include "plan/tiles/backward_schedule.h"
#include "shared/sequences.h"

namespace heddle::plan {
namespace {

static_assert(shared::kTileKvTile == offsetof(shared::BackwardTile, item.kv_tile) &&
              shared::kTileKvHead == offsetof(shared::BackwardTile, item.kv_head) &&
              shared::kTileBatch == offsetof(shared::BackwardTile, item.batch) &&
              shared::kTileFirstRun == offsetof(shared::BackwardTile, item.first_run) &&
              shared::kTileRuns == offsetof(shared::BackwardTile, item.runs) &&
              shared::kTileSteps == offsetof(shared::BackwardTile, item.steps) &&
              shared::kTileFirstBlock == offsetof(shared::BackwardTile, item.first_block) &&
              shared::kTileShare == offsetof(shared::BackwardTile, item.share) &&
              shared::kTileQLen == offsetof(shared::BackwardTile, q_len) &&
              shared::kTileKvLen == offsetof(shared::BackwardTile, kv_len) &&
              shared::kTileQStart == offsetof(shared::BackwardTile, q_start) &&
              shared::kTileKvBegin == offsetof(shared::BackwardTile, kv_begin) &&
              shared::kTileQEnd == offsetof(shared::BackwardTile, q_end) &&
              shared::kTileKvEnd == offsetof(shared::BackwardTile, kv_end) &&
              shared::kTileKvBefore == offsetof(shared::BackwardTile, kv_before) &&
              shared::kStepQFirst == offsetof(shared::BackwardStep, q_first) &&
              shared::kStepHead == offsetof(shared::BackwardStep, head) &&
              shared::kStepFlags == offsetof(shared::BackwardStep, flags) &&
              shared::kStepBlock == offsetof(shared::BackwardStep, block));

using problem::AttentionProblem;
using shared::BackwardSm90Config;
using shared::StorageType;

constexpr int kNarrowPanels = 2;  // up to here a warpgroup holds dK and dV of its keys

bool divides(const ConstTensorView& view, std::int64_t elements) {
  for (int axis = 0; axis + 1 < view.rank(); ++axis) {
    if (view.shape[axis] != 1 && view.strides[axis] % elements != 0) return false;
  }
  const auto bytes = static_cast<std::uintptr_t>(elements * size_of(view.dtype));
  return reinterpret_cast<std::uintptr_t>(view.data) % bytes == 0;
}

/// A wide kernel has what its panels leave room for: two buffers of each first, then a third of Q. If they do not fit
/// beside the pieces of dQ, the warpgroup of queries adds dQ from its registers. Four panels of both leave dO room for
/// three halves.
void set_stages(BackwardSm90Config& config) {
  config.q_stages = config.d_o_stages = 3;
  if (!config.wide) return;
  const auto fits = [&](int of_q, int of_d_o, bool added) {
    config.q_stages = of_q;
    config.d_o_stages = of_d_o;
    config.d_q_added = added;
    return shared::backward_shared_bytes(config) <= kSm90SharedMemory;
  };
  if (fits(3, 2, false) || fits(2, 2, false) || fits(2, 2, true)) return;
  config.d_o_stages = 3;
  config.d_o_halves = true;
}

constexpr std::int64_t kMostHeads = 65535;  // the height of a grid

std::string refuse_types(const Request& request) {
  const AttentionProblem& problem = request.problem;
  if (size_of(problem.q_dtype) == 1) {
    return fmt::format("q, k and v are {}, {}, {}; bf16 for all or f16 for all is accepted", name(problem.q_dtype),
                       name(problem.k_dtype), name(problem.v_dtype));
  }
  if (request.backward->d_o.dtype != problem.q_dtype) {
    return fmt::format("dO is {}; {}, q's type, is accepted", name(request.backward->d_o.dtype), name(problem.q_dtype));
  }
  return {};
}

std::string refuse_sizes(const AttentionProblem& problem, const BackwardSm90Config& config) {
  if (problem.q_heads > kMostHeads) {
    return fmt::format("q has {} heads; up to {} are accepted", problem.q_heads, kMostHeads);
  }
  const std::int64_t parts = count_row_blocks(problem) * problem.q_heads * config.warpgroups;
  if (parts > std::numeric_limits<int>::max()) {
    return fmt::format("q has {} rows of {} heads, which make {} parts of dq; up to 2147483647 are accepted",
                       problem.q_rows, problem.q_heads, parts);
  }
  return {};
}

std::string refuse_blocks(const AttentionOptions& options) {
  if (options.block_mask == nullptr) return {};
  const BlockSize block = options.block_mask->block();
  if (block.q % shared::kStepQueries == 0 && block.kv % shared::kWarpgroupRows == 0) return {};
  return fmt::format("the block mask has blocks of {} x {}; multiples of {} x {} are accepted", block.q, block.kv,
                     shared::kStepQueries, shared::kWarpgroupRows);
}

std::int64_t aligned(std::int64_t bytes) {
  return (bytes + shared::kLineBytes - 1) / shared::kLineBytes * shared::kLineBytes;
}

}  // namespace

BackwardMods backward_sm90_mods(const AttentionProblem& problem) {
  const bool reads = !problem.wanted.captures.empty() || !problem.wanted.params.empty();
  return backward_mods(problem, reads ? OfPlaces::left : OfPlaces::native);
}

BackwardMods backward_sm90_mods(const AttentionProblem& problem, const BackwardSm90Config& config) {
  return backward_mods(problem, config.placed_queries || config.placed_keys ? OfPlaces::native : OfPlaces::left);
}

BackwardSm90Config backward_sm90_config(const problem::AttentionProblem& problem, const BackwardMods& mods) {
  BackwardSm90Config config;
  config.qk_dim = static_cast<int>(problem.qk_dim);
  config.v_dim = static_cast<int>(problem.v_dim);
  const int panels = std::max(config.qk_panels(), config.v_panels());
  config.wide = panels > kNarrowPanels;
  config.columns = shared::kPanelColumns * (config.wide ? config.qk_panels() : panels);
  config.warpgroups = 2;
  config.f16 = problem.q_dtype == DType::f16;
  config.d_q = problem.wanted.q;
  config.masked = !mods.mask.empty();
  config.dropped = mods.drops.has_value();
  config.weighted = !mods.weight.empty() && !config.dropped;
  config.by_sequence = problem::sequences_differ(problem) || problem.packed;
  config.device_lengths = problem.device_lengths;
  const auto adds_alone = [&](const Sequence& sequence) { return sequence.kv_len <= config.keys(); };
  config.ordered = problem.deterministic && config.d_q && count_row_blocks(problem) > 0 &&
                   !std::ranges::all_of(problem.sequences, adds_alone);
  config.sinks = problem.wanted.sinks;
  config.scores = mods.form;
  config.placed_queries = !mods.places.query.empty();
  config.placed_keys = !mods.places.key.empty();
  // A score_mod and its derivative leave no registers for them beside 128 columns, draws none beside 256.
  const bool mapped = config.scores == shared::ScoreForm::mapped;
  config.early_numbers =
      config.wide ? !mapped && !config.dropped && !config.weighted : config.columns == shared::kPanelColumns || !mapped;
  config.normalizer = normalizer_of(problem);
  config.lse_rest = problem.with_lse_rest;
  const std::string ring = base::value_of(base::Option::d_q_ring);
  config.ring = ring.empty() ? prefers_d_q_ring(problem, config) : ring != "off" && takes_d_q_ring(problem, config);
  config.o_type = output_type_of(problem.o_dtype, problem.q_dtype);
  set_stages(config);
  return config;
}

std::vector<BackwardSm90Config> with_d_q_apart(BackwardSm90Config config) {
  constexpr int kStages = 4;
  if (config.columns != shared::kPanelColumns || config.wide || !config.d_q) return {};
  config.d_q_apart = config.held = true;
  config.q_stages = config.d_o_stages = kStages;
  std::vector<BackwardSm90Config> configs;
  // A score_mod and its derivative leave no registers for them.
  config.early_numbers = config.scores != shared::ScoreForm::mapped;
  if (config.early_numbers) configs.push_back(config);
  config.early_numbers = false;
  configs.push_back(config);
  config.held = false;
  configs.push_back(config);
  return configs;
}

BackwardSm90Config with_gradients(BackwardSm90Config config, const BackwardTensors& tensors) {
  constexpr std::int64_t kVector = 8;
  config.vectorised_rows = config.o_type == StorageType::same && config.v_dim % kVector == 0 &&
                           divides(tensors.o, kVector) && divides(tensors.d_o, kVector);
  const DType own = tensors.q.dtype;
  const auto set = [&](const std::optional<TensorView>& view, StorageType& type) {
    if (!view) return;
    type = output_type_of(view->dtype, own);
    config.odd_gradients = config.odd_gradients || !divides(*view, 2);
  };
  const auto vectorised = [&](const std::optional<TensorView>& view) {
    return !view || (view->dtype == own && view->shape[view->rank() - 1] % kVector == 0 && divides(*view, kVector));
  };
  config.vectorised_gradients = vectorised(tensors.dk) && vectorised(tensors.dv);
  config.vectorised_d_q = tensors.dq && vectorised(tensors.dq);
  set(tensors.dq, config.d_q_type);
  set(tensors.dk, config.d_k_type);
  set(tensors.dv, config.d_v_type);
  if (tensors.d_sinks) config.d_sinks_type = output_type_of(tensors.d_sinks->dtype, own);
  return config;
}

std::vector<Setting> backward_sm90_settings(const BackwardSm90Config& config) {
  std::vector<Setting> settings = settings_of(config);
  settings.push_back({"shared_memory_bytes", shared::backward_shared_bytes(config)});
  return settings;
}

std::int64_t count_tiles(const AttentionProblem& problem, const BackwardSm90Config& config) {
  return count_tiles_of(problem, TileRows::keys, config.tile());
}

BackwardSm90Schedule backward_sm90_schedule(const AttentionProblem& problem, const BackwardSm90Config& config,
                                            const BlockMask* block_mask, int multiprocessors,
                                            const DqRingShape& shape) {
  BackwardSm90Schedule schedule = {
      backward_schedule(problem, TileRows::keys, config.tile(), config.ordered, block_mask, shape.bundles()), {}, 0};
  if (config.shares) {
    // Sections of the last bundle have slots of their own in a ring, so their tiles may have any order.
    const auto last = [&](const shared::BackwardItem& item) {
      return item.batch * problem.kv_heads + item.kv_head >= shape.in_turns();
    };
    const std::int64_t most = config.ring ? std::ranges::count_if(schedule.items, last) : std::ssize(schedule.items);
    schedule.share_places = share_tiles(config, multiprocessors, most, schedule);
  }
  if (config.ring) schedule.turns = d_q_turns(problem, config, shape, schedule);
  return schedule;
}

BackwardSm90Schedule backward_sm90_schedule(const AttentionProblem& problem, const BackwardSm90Config& config,
                                            const BlockMask* block_mask, int multiprocessors) {
  return backward_sm90_schedule(problem, config, block_mask, multiprocessors, d_q_ring_shape(problem, config));
}

shared::BackwardListsMemory backward_lists_memory(const AttentionProblem& problem, const BackwardSm90Config& config) {
  return shared::backward_lists_memory(problem.batch, count_row_blocks(problem), count_tiles(problem, config));
}

BackwardSm90Workspace backward_sm90_workspace(const AttentionProblem& problem, const BackwardSm90Config& config) {
  const std::int64_t blocks = count_row_blocks(problem) * problem.q_heads;
  BackwardSm90Workspace workspace{};
  workspace.d_q = aligned(blocks * shared::block_bytes(config.lse_rest));
  const DqRingShape ring = d_q_ring_shape(problem, config);
  const std::int64_t units = config.ring ? ring.ring_units() : config.d_q ? blocks : 0;
  workspace.sinks = workspace.d_q + units * config.panels() * shared::kPartBytes;
  workspace.drawn = workspace.sinks + (config.sinks ? aligned(blocks * 4) : 0);
  workspace.turns = workspace.drawn + aligned(4);
  workspace.counters = workspace.turns + (config.ordered ? aligned(4 * units * config.warpgroups) : 0);
  workspace.lists = workspace.counters + aligned(2 * 4 * ring.sections);
  workspace.bytes = workspace.lists;
  if (config.device_lengths) workspace.bytes += aligned(backward_lists_memory(problem, config).bytes);
  return workspace;
}

/// Limits of kernels for head dims above 128: the pass for reads holds two panels, and pairs of CTAs take no turns.
std::string refuse_wide(const AttentionProblem& problem, const BackwardSm90Config& config, const BackwardReads& reads) {
  constexpr int kMost = 2 * shared::kPanelColumns;
  if (!config.wide) return {};
  if (reads.any()) {
    return fmt::format(
        "gradients of captures or params are asked for with head dimensions {} and {}; up to {} are accepted",
        problem.qk_dim, problem.v_dim, kMost);
  }
  if (!config.ordered) return {};
  std::int64_t keys = 0;
  for (const Sequence& sequence : problem.sequences) keys = std::max(keys, sequence.kv_len);
  return fmt::format(
      "deterministic is asked for, and dq of {} keys with head dimensions {} and {} is added by tiles of {} keys in "
      "any "
      "order; up to {} keys, head dimensions up to {}, or no dq, are accepted",
      keys, problem.qk_dim, problem.v_dim, config.keys(), config.keys(), kMost);
}

std::string backward_sm90_refuses(const Request& request, const device::CudaCaps& caps) {
  const AttentionProblem& problem = request.problem;
  std::string reason = sm90_refuses(problem, request.options, caps);
  if (reason.empty()) reason = refuse_types(request);
  if (!reason.empty()) return reason;
  const BackwardMods mods = backward_sm90_mods(problem);
  const BackwardSm90Config config = backward_sm90_config(problem, mods);
  const BackwardReads reads = backward_reads(problem, request.options.bindings, mods.kv_start);
  std::array<std::string, 5> reasons = {refuse_broadcasts(request), refuses_reads(problem, reads),
                                        refuse_wide(problem, config, reads), refuse_sizes(problem, config),
                                        refuse_blocks(request.options)};
  const auto found = std::ranges::find_if(reasons, [](const std::string& each) { return !each.empty(); });
  return found == reasons.end() ? std::string() : std::move(*found);
}

}  // namespace heddle::plan
