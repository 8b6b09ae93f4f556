#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <span>
#include <utility>

#include "base/environment.h"
#include "families/forward_sm90/forward_sm90.h"
#include "families/forward_sm90/forward_sm90_costs.h"
#include "families/forward_sm90/forward_sm90_ranking.h"
#include "heddle/error.h"
#include "plan/access/tensor_access.h"
#include "plan/access/tma_refuses.h"
#include "plan/factors.h"
#include "plan/mods/stored_mask_choice.h"
#include "plan/tiles/packed_heads.h"
#include "shared/sequences.h"

namespace heddle::plan {
namespace {

using problem::AttentionProblem;
using shared::ForwardSm90Config;

constexpr std::int64_t kTicketBytes = shared::kLineBytes;  // for one TicketWord

/// Whether a capture comes in tiles.
struct Streaming {
  bool streams = false;
  std::optional<TensorCopy> copy{};  // of which they come
  std::string reason{};              // why there is a copy, or why they do not come
};
Streaming streaming_of(const AttentionProblem& problem, const KernelMods& mods, const Bindings& bindings) {
  // Whether TMA takes a capture depends on its strides, and those on the batch.
  if (problem.batch_invariant) return {};
  // In 8 bits the warp that would load the tiles transposes values.
  if (!mods.streamed || size_of(problem.q_dtype) == 1) return {};
  const ConstTensorView& view = bindings.captures.at(mods.streamed->capture);
  if (view.count() == 0) return {};
  if (std::string reason = refuses_copy(*mods.streamed, view); !reason.empty()) return {.reason = std::move(reason)};
  std::string reason = refuses_streaming(*mods.streamed, view);
  if (reason.empty()) return {.streams = true};
  const TensorCopy copy = copy_for(in_tiles(*mods.streamed, view, tile_reach(problem)));
  const std::int64_t most = most_copy_bytes();
  if (copy.bytes() <= most) return {.streams = true, .copy = copy, .reason = std::move(reason)};
  return {.reason = fmt::format("{}; a copy would take {} bytes, and up to {} are taken ({})", reason, copy.bytes(),
                                most, base::name_of(base::Option::copy_bytes))};
}

double moved_bytes(const AttentionProblem& problem) {
  std::int64_t rows = 0, keys = 0;
  for (const Sequence& sequence : problem.sequences) {
    rows += sequence.q_len;
    keys = problem.shared_kv ? std::max(keys, sequence.kv_len) : keys + sequence.kv_len;
  }
  const std::int64_t row_bytes = problem.qk_dim * size_of(problem.q_dtype) + problem.v_dim * size_of(problem.o_dtype) +
                                 (problem.with_lse ? 4 : 0) + (problem.with_max_scores ? 4 : 0) +
                                 (problem.with_lse_rest ? 4 : 0);
  const std::int64_t key_bytes = problem.qk_dim * size_of(problem.k_dtype) + problem.v_dim * size_of(problem.v_dtype);
  const std::int64_t bytes = rows * problem.q_heads * row_bytes + keys * problem.kv_heads * key_bytes;
  return static_cast<double>(bytes);
}

/// The copies, in the workspace and in the prediction.
void add_copies(Plan& plan, const AttentionProblem& problem, const TensorCopies& copies) {
  plan.copies = copies;
  const CopyWork work = place_copies(plan.copies, problem, plan.workspace_bytes);
  plan.workspace_bytes = work.workspace_bytes;
  if (work.bytes == 0 && work.shares == 0) return;
  plan.predicted->bytes += work.bytes;
  plan.predicted->seconds += kSm90Rates.copy_seconds + std::max(work.bytes / kSm90Rates.memory_bytes_per_second,
                                                                work.shares * kSm90Rates.copied_share_seconds);
}

/// batch_invariant: the mods as they are in a batch without kv_start, so that its reads count in none. Else `mods`.
KernelMods without_starts(AttentionProblem problem, const KernelMods& mods) {
  if (!problem.batch_invariant || mods.kv_start.form == KvStart::Form::zero) return mods;
  problem.device_kv_starts = false;
  for (Sequence& sequence : problem.sequences) sequence.kv_start = 0;
  KernelMods others = kernel_mods(problem, mods.has_key_numbers() ? OfKeys::separated : OfKeys::left);
  others.streamed = mods.streamed;
  return others;
}

/// Clocks that a score takes in a full step: a number that knows no batch.
double steady_clocks(ForwardSm90Config config) {
  config.page_rows = 0;
  config.by_sequence = config.device_lengths = config.odd_o = false;
  return forward_sm90_clocks(config).full_step / (config.rows() * config.kv_block);
}

ForwardSm90Candidate plan_for(const AttentionProblem& problem, const ForwardSm90Config& config, const KernelMods& mods,
                              const TensorAccess& access, const Bindings& bindings, const device::CudaCaps& caps,
                              const RowsOf& rows_of) {
  ForwardSm90Candidate candidate;
  Plan& plan = candidate.choice.plan;
  plan.tile = {config.rows(), config.kv_block};
  plan.device = caps.index;
  plan.family_part = config;
  if (config.packs()) {
    plan.packed_heads = static_cast<int>(std::min<std::int64_t>(config.heads(), problem.group()));
    plan.packed_queries = config.packed_queries;
  }
  plan.order.batch_inside =
      config.streamed_bytes > 0 && mods.streamed->serves_every_batch(bindings.captures.at(mods.streamed->capture));
  candidate.choice.block_mask = rows_of({shared::kWarpgroupRows, config.kv_block});

  plan.mods = mods;
  TileSchedule schedule = forward_sm90_schedule(problem, config, candidate.choice.block_mask.get(), caps, plan.order);
  candidate.stored_partial = schedule.stored.partial;
  candidate.stored_room = schedule.stored.room;
  const double bytes = moved_bytes(problem) + static_cast<double>(candidate.stored_bytes());
  candidate.computing = forward_sm90_seconds(schedule);
  if (mods.streamed && config.streamed_bytes == 0) candidate.computing *= kPlannerFactors.element_reads;
  plan.grid = schedule.grid;
  plan.multiprocessors = caps.multiprocessors;
  // Other bindings may make any tile attend something.
  const std::int64_t tiles = count_tiles(problem, config.tile());
  plan.workspace_bytes = tiles > caps.multiprocessors ? kTicketBytes : 0;
  if (config.device_lengths) plan.workspace_bytes = shared::sequences_memory(problem.batch, tiles).bytes;
  const double rate = problem.page_rows > 0 ? kSm90Rates.paged_bytes_per_second : kSm90Rates.memory_bytes_per_second;
  plan.predicted = {
      .seconds = std::max(candidate.computing, bytes / rate),
      .flops = 2.0 * static_cast<double>(problem.qk_dim + problem.v_dim) * static_cast<double>(schedule.elements),
      .bytes = bytes,
      .flops_per_second = sm90_flops_per_second(config.element_bytes(), caps.multiprocessors),
      .bytes_per_second = rate};
  plan.access = access.reasons;
  add_copies(plan, problem, access.copies);
  plan.schedule = std::make_shared<const TileSchedule>(std::move(schedule));
  candidate.may_spill = forward_sm90_registers(config, without_starts(problem, mods)) > config.consumer_registers();
  candidate.weighs_each = mods.drops && !config.dropped;
  candidate.masks_each = mods.stores_mask && config.mask == shared::MaskForm::direct;
  if (!problem.batch_invariant) return candidate;
  candidate.steady = steady_clocks(config);
  candidate.computing = 0;
  return candidate;
}

/// The table's kernels; if a capture of f32 is streamed, also those for such captures alone.
std::vector<ForwardSm90Kernel> kernels_for(const KernelMods& mods, bool streams, bool fp8) {
  const std::span<const ForwardSm90Kernel> table = forward_sm90_kernels(fp8), wide = kForwardSm90WideCaptureKernels;
  std::vector<ForwardSm90Kernel> kernels(table.begin(), table.end());
  if (streams && mods.streamed->dtype == DType::f32) {
    kernels.insert(kernels.end(), wide.begin(), wide.end());
  }
  return kernels;
}

/// Kernels whose tiles divide the caller's blocks and the granules of `places`; with few queries, each also packed.
/// Spare kernels are added in three cases: no other fits; the compiler may refuse all others, because mods compute much
/// for each element or threads store the o of 8-bit products; or the mask's bits are stored, for their finer blocks.
std::vector<ForwardSm90Config> configs_for(const AttentionProblem& problem, const KernelMods& mods,
                                           const TensorAccess& access, bool streams, const AttentionOptions& options,
                                           const Places& places, std::vector<std::string>& rejected) {
  const bool fp8 = size_of(problem.k_dtype) == 1;
  const HeadDims native = native_dims({static_cast<int>(problem.qk_dim), static_cast<int>(problem.v_dim)}, fp8);
  std::vector<int> packed = packed_queries(problem);
  packed.insert(packed.begin(), 0);  // one head's
  std::vector<ForwardSm90Config> configs;
  for (const bool spare : {false, true}) {
    if (spare && !configs.empty() && !mods.heavy() && !mods.stores_mask && !(fp8 && access.odd_o)) break;
    for (const ForwardSm90Kernel& kernel : kernels_for(mods, streams, fp8)) {
      if (!(dims_of(kernel) == native) || kernel.spare != spare) continue;
      for (const int queries : packed) {
        const ForwardSm90Config config = config_for(kernel, problem, mods, access, streams, queries);
        std::string reason = misfit(config, problem, options.block_mask.get());
        if (reason.empty()) reason = misfit(config, places);
        if (reason.empty()) {
          configs.push_back(config);
        } else {
          rejected.push_back(fmt::format("{}: {}", describe(config), reason));
          if (queries == 0) break;
        }
      }
    }
  }
  if (streams) std::erase_if(configs, [](const ForwardSm90Config& config) { return config.streamed_bytes == 0; });
  return configs;
}

struct Candidates {
  std::vector<ForwardSm90Candidate> all;
  std::vector<std::string> rejected;
  /// The most bytes that one of them stores of the mask.
  std::int64_t stored_bytes() const {
    std::int64_t most = 0;
    for (const ForwardSm90Candidate& candidate : all) most = std::max(most, candidate.stored_bytes());
    return most;
  }
  /// Lists are kept of the best alone: they take 48 bytes a tile.
  void add(ForwardSm90Candidate candidate) {
    all.push_back(std::move(candidate));
    if (all.size() == 1) return;
    const bool better = all.back().rank() < all[best].rank();
    all[better ? best : all.size() - 1].choice.plan.schedule.reset();
    if (better) best = all.size() - 1;
  }
  std::size_t best = 0;
};

Candidates candidates_for(const AttentionProblem& problem, const KernelMods& mods, const TensorAccesses& accesses,
                          const AttentionOptions& options, const device::CudaCaps& caps, const RowsOf& rows_of,
                          const Places& places) {
  Candidates candidates = {.all = {}, .rejected = accesses.rejected};
  const Streaming streaming = streaming_of(problem, mods, options.bindings);
  std::int64_t least = std::numeric_limits<std::int64_t>::max();  // that some way copies of q, k and v
  for (const TensorAccess& access : accesses.ways) least = std::min(least, room_of(access.copies));
  bool copies_more = false;
  const auto add = [&](const TensorAccess& access, bool streams) {
    const std::size_t before = candidates.all.size();
    for (const ForwardSm90Config& config :
         configs_for(problem, mods, access, streams, options, places, candidates.rejected)) {
      ForwardSm90Candidate candidate = plan_for(problem, config, mods, access, options.bindings, caps, rows_of);
      candidate.reads_each = !streams && streaming.streams;
      candidate.copies_more = copies_more;
      candidates.add(std::move(candidate));
    }
    return candidates.all.size() > before;
  };
  for (const TensorAccess& access : accesses.ways) {
    copies_more = room_of(access.copies) > least;
    // Reading a capture of all pairs element by element costs several times its tiles, but less than a copy of it.
    if (streaming.streams && add(streaming.copy ? access.with_copy(*streaming.copy, streaming.reason) : access, true) &&
        !streaming.copy) {
      continue;
    }
    add(access.because(streaming.reason), false);
  }
  // Ways that differ in what is read reject the same tiles.
  std::vector<std::string> once;
  for (std::string& reason : candidates.rejected) {
    if (std::ranges::find(once, reason) == once.end()) once.push_back(std::move(reason));
  }
  candidates.rejected = std::move(once);
  return candidates;
}

/// And where kernels compute numbers of keys or look up places also those that do not, since the compiler may refuse
/// all of the former.
Candidates all_candidates(const AttentionProblem& problem, const KernelMods& mods, const TensorAccesses& accesses,
                          const AttentionOptions& options, const device::CudaCaps& caps, const RowsOf& rows_of) {
  Candidates candidates = candidates_for(problem, mods, accesses, options, caps, rows_of, mods.places);
  if (mods.has_key_numbers()) {
    KernelMods left = kernel_mods(problem, OfKeys::left, OfPlaces::native);
    left.stores_mask = mods.stores_mask;
    for (ForwardSm90Candidate& candidate :
         candidates_for(problem, left, accesses, options, caps, rows_of, left.places).all) {
      // The kernels that have room for a table may be much the slower ones.
      candidate.reads_table = mods.table_entries > 0;
      candidate.numbers_each = !candidate.reads_table;
      candidates.add(std::move(candidate));
    }
  }
  if (mods.places.any()) {
    // Their tiles are those of the former, if there are any, so that no other rows of blocks are asked for.
    const Places tiles = candidates.all.empty() ? Places() : mods.places;
    const KernelMods left = kernel_mods(problem, OfKeys::left);
    for (ForwardSm90Candidate& candidate : candidates_for(problem, left, accesses, options, caps, rows_of, tiles).all) {
      candidate.places_each = true;
      candidates.add(std::move(candidate));
    }
  }
  if (candidates.all.empty()) {
    throw Error(ErrorCode::unsupported,
                fmt::format("no kernel of forward_sm90 fits: {}", fmt::join(candidates.rejected, "; ")));
  }
  return candidates;
}

/// Adds features of 16-bit kernels that make them faster and that kernels of 8 bits lack.
void append_left_out(const AttentionProblem& problem, const KernelMods& mods, std::vector<std::string>& rejected) {
  if (problem.batch_invariant && mods.streamed) {
    rejected.push_back(
        fmt::format("tiles of capture '{}', so each element is read: batch_invariant, and whether TMA takes it depends "
                    "on its strides",
                    mods.streamed->capture));
  }
  if (size_of(problem.q_dtype) != 1) return;
  if (mods.streamed) {
    rejected.push_back(fmt::format(
        "tiles of capture '{}', so each element is read: q is {}, and the warp that would load them transposes values",
        mods.streamed->capture, name(problem.q_dtype)));
  }
  if (mods.drops) {
    rejected.push_back(fmt::format("masks of draws, so each is compared: q is {}, and four weights share a register",
                                   name(problem.q_dtype)));
  }
}

}  // namespace

TileSchedule forward_sm90_schedule(const AttentionProblem& problem, const ForwardSm90Config& config,
                                   const BlockMask* block_mask, const device::CudaCaps& caps, const TileOrder& order) {
  return schedule_tiles(problem, config.tile(), forward_sm90_clocks(config), block_mask, caps, order);
}

std::vector<Choice> forward_sm90(const AttentionProblem& problem, const AttentionTensors& tensors,
                                 const AttentionOptions& options, const device::CudaCaps& caps, const RowsOf& rows_of) {
  const TensorAccesses accesses = tensor_accesses(tensors, problem);
  KernelMods mods = kernel_mods(problem, OfKeys::separated, OfPlaces::native);
  const std::string for_each_pair = mods.has_key_numbers() ? refuses_key_numbers(problem, mods) : std::string();
  if (!for_each_pair.empty()) mods = kernel_mods(problem, OfKeys::left, OfPlaces::native);
  std::string unstored = refuses_storing(problem, options.block_mask.get());
  if (problem.batch_invariant && unstored.empty()) unstored = "batch_invariant: how many bytes depends on the batch";
  mods.stores_mask = masks_by_values(mods) && unstored.empty();
  const RowsOf once = remembering(rows_of);
  Candidates found = all_candidates(problem, mods, accesses, options, caps, once);
  if (std::string reason = refuses_bytes(found.stored_bytes()); !reason.empty()) {
    unstored = std::move(reason);
    mods.stores_mask = false;  // other kernels may then be the better ones
    found = all_candidates(problem, mods, accesses, options, caps, once);
  }
  std::vector<ForwardSm90Candidate>& candidates = found.all;
  std::vector<std::string>& rejected = found.rejected;
  for (ForwardSm90Candidate& candidate : candidates) {
    Plan& plan = candidate.choice.plan;
    const std::string unlooked = "positions are looked up for each row and key";
    plan.forms = {.score = describe_score(plan.mods),
                  .mask = describe_mask(plan.mods, plan.part<shared::ForwardSm90Config>().mask,
                                        plan.part<shared::ForwardSm90Config>().tile(), candidate.stored_partial,
                                        candidate.stored_bytes(), candidate.places_each ? unlooked : unstored),
                  .weight = describe_weight(plan.part<shared::ForwardSm90Config>(), plan.mods),
                  .places = describe_places(plan.mods.places)};
  }
  append_left_out(problem, mods, rejected);
  if (!for_each_pair.empty()) {
    rejected.push_back(fmt::format("numbers of keys, so each pair computes them: {}", for_each_pair));
  }
  std::ranges::stable_sort(candidates, {}, &ForwardSm90Candidate::rank);

  std::vector<Choice> choices;
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    std::vector<std::string>& reasons = candidates[i].choice.plan.rejected;
    reasons = rejected;
    for (std::size_t j = i + 1; j < candidates.size(); ++j) {
      reasons.push_back(standing_behind(candidates[j], candidates[i]));
    }
  }
  for (ForwardSm90Candidate& candidate : candidates) choices.push_back(std::move(candidate.choice));
  return choices;
}

}  // namespace heddle::plan
