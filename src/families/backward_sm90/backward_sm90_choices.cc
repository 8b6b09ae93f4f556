// The kernels of a backward on Hopper, the best first: their lists, grids, workspaces and predicted times.
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "base/environment.h"
#include "families/backward_sm90/backward_reads.h"
#include "families/backward_sm90/backward_sm90.h"
#include "families/backward_sm90/tile_shares.h"
#include "plan/access/tensor_access.h"
#include "plan/access/tma_refuses.h"
#include "plan/hopper/sm90_chip.h"
#include "plan/tiles/backward_schedule.h"

namespace heddle::plan {
namespace {

using problem::AttentionProblem;
using shared::BackwardSm90Config;

/// q, k, v and dO where TMA finds them, or copies.
void set_access(const Request& request, Plan& plan) {
  AttentionTensors tensors = request.tensors;
  tensors.o = TensorView{nullptr, tensors.q.dtype, tensors.o.shape};  // no product reads it
  const TensorAccess access = std::move(tensor_accesses(tensors, request.problem).ways.front());
  plan.copies = access.copies;
  plan.access = access.reasons;
  const ConstTensorView& d_o = request.backward->d_o;
  const std::string reason = d_o.count() == 0 ? std::string() : tma_refuses(d_o);
  if (!reason.empty()) {
    TensorCopy copy = copy_for(d_o);
    copy.offset = room_of(plan.copies);
    plan.copies[kCopiedDO] = copy;
    plan.access.push_back(fmt::format("dO is copied into the workspace by each run: {}", reason));
  }
}

/// The share of the pass for gradients of captures: two products of five, and all arithmetic. A guess.
constexpr double kReadsShare = 0.6;
constexpr double kLaunchSeconds = 10e-6;  // of the three kernels

Prediction predict(const AttentionProblem& problem, const BackwardSm90Config& config, const BackwardSchedule& schedule,
                   const device::CudaCaps& caps) {
  const double qk = static_cast<double>(problem.qk_dim), v = static_cast<double>(problem.v_dim);
  const double rows = static_cast<double>(problem.packed ? problem.q_rows : problem.batch * problem.q_rows) *
                      static_cast<double>(problem.q_heads),
               keys = static_cast<double>(problem.packed ? problem.kv_rows : problem.batch * problem.kv_rows) *
                      static_cast<double>(problem.kv_heads);
  const auto element = static_cast<double>(size_of(problem.q_dtype));
  // Around the main kernel o and dO are read, and dQ's sums zeroed, read, and written as dq, if they are no ring.
  const double around = rows * (2 * v * element + (config.d_q && !config.ring ? 8 * qk + qk * element : 0));
  const double bytes = around + rows * (qk + v + (config.ring ? qk : 0)) * element + 2 * keys * (qk + v) * element;
  const double sms = std::max(1, caps.multiprocessors);
  const auto [of_step, of_tile] = backward_sm90_clocks(config);
  const double clocks =
      (static_cast<double>(schedule.steps) * of_step + static_cast<double>(schedule.items.size()) * of_tile) *
      config.tile_ctas();
  const double longest = static_cast<double>(schedule.longest) * of_step + of_tile;
  return {.seconds = std::max(clocks / sms, longest) / kSm90Rates.clocks_per_second +
                     around / kSm90Rates.memory_bytes_per_second + kLaunchSeconds,
          .flops = 2 * (3 * qk + 2 * v) * static_cast<double>(schedule.elements),
          .bytes = bytes};
}

void describe(const AttentionProblem& problem, const BackwardSm90Config& config, const BackwardMods& mods,
              const BackwardReads& reads, Plan& plan) {
  plan.forms.score = describe_derivative(mods);
  plan.forms.places = describe_places(mods.places);
  if (!problem.mask_mod.empty()) plan.forms.mask = "computed for each pair of a partial block, over columns of blocks";
  if (mods.drops) {
    plan.forms.weight = "dropped: a bit for each pair of a thread, by the forward's draws; two keys share a call";
  } else if (!problem.weight_mod.empty()) {
    plan.forms.weight = "computed for each pair, for dV and again for dS";
  }
  plan.gradients.push_back("S and P are recomputed from q, k and lse, dP from dO and v");
  if (problem.wanted.q) {
    plan.gradients.push_back(
        config.ordered ? "dq: tiles of keys add to sums in f32, in the order of the keys; the same bits in each run"
        : problem.deterministic
            ? "dq: one tile of keys adds to each element; the same bits in each run"
            : "dq: tiles of keys add to sums in f32, in any order; bits may differ from run to run");
  }
  if (problem.wanted.k || problem.wanted.v) {
    plan.gradients.push_back(
        "dk, dv: in registers of one CTA, over all query heads of the group; the same bits in each run");
  }
  if (problem.wanted.sinks) {
    plan.gradients.push_back(
        "d_sinks: -sum exp(sink - lse) delta, 64 rows at a time, in order; the same bits in each run");
  }
  if (config.ring) {
    const DqRingShape ring = d_q_ring_shape(problem, config);
    plan.gradients.push_back(
        fmt::format("dq's sums: a ring of {} heads of keys of {}; tiles make dq of those before them",
                    ring.slots + ring.last, ring.sections));
  }
  if (config.d_q_apart) {
    plan.gradients.push_back(
        fmt::format("a warpgroup of its own multiplies for dq; those that own keys have K and V in {}",
                    config.held ? "registers" : "shared memory"));
  }
  if (config.shares) {
    plan.gradients.push_back(
        "the last tiles of keys are shared by several CTAs, which walk some of their queries each; dk and dv are added "
        "in the order of the queries");
  }
  for (std::string& sentence : describe_reads(reads)) plan.gradients.push_back(std::move(sentence));
}

/// The best first. For mods that need too many registers, candidates follow without lse and delta in registers beside
/// products, then with little of the mod's own state there.
std::vector<BackwardSm90Config> configs_of(const BackwardSm90Config& config) {
  std::vector<BackwardSm90Config> configs = with_d_q_apart(config);
  configs.push_back(config);
  if (config.early_numbers) {
    configs.push_back(config);
    configs.back().early_numbers = false;
  }
  if (config.scores != shared::ScoreForm::plain || config.weighted || config.dropped) {
    configs.push_back(configs.back());
    configs.back().frugal = true;
  }
  return configs;
}

/// A choice without its kernel: the list of tiles, the grid and the workspace, which kernels with a ring of dQ's sums
/// have in common, and those without.
struct Tiled {
  Choice choice;
  BackwardSm90Schedule schedule;
  double copied_bytes = 0;
};

Tiled tile(const Request& request, const device::CudaCaps& caps, const RowsOf& rows_of,
           const BackwardSm90Config& config, const BackwardReads& reads, bool shares) {
  const AttentionProblem& problem = request.problem;
  Tiled tiled;
  Plan& plan = tiled.choice.plan;
  tiled.choice.block_mask = rows_of({shared::kStepQueries, shared::kWarpgroupRows});
  plan.tile = {shared::kStepQueries, config.keys()};
  plan.device = caps.index;
  plan.multiprocessors = caps.multiprocessors;
  BackwardSm90Config of_list = config;
  of_list.shares = shares && takes_shares(problem, config);
  tiled.schedule = backward_sm90_schedule(problem, of_list, tiled.choice.block_mask.get(), caps.multiprocessors);
  // With no queries the draw counter is never zeroed, so launch one CTA per tile.
  const auto tiles = static_cast<int>(tiled.schedule.items.size());
  plan.grid = tiled.schedule.blocks.empty() || !config.draws() ? tiles * config.tile_ctas()
                                                               : std::min(tiles, std::max(1, caps.multiprocessors));
  plan.workspace_bytes = backward_sm90_workspace(problem, config).bytes + backward_reads_memory(problem, reads).bytes +
                         tile_shares_memory(config, tiled.schedule.share_places).bytes;
  set_access(request, plan);
  const CopyWork work = place_copies(plan.copies, problem, plan.workspace_bytes);
  plan.workspace_bytes = work.workspace_bytes;
  tiled.copied_bytes = work.bytes;
  return tiled;
}

}  // namespace

std::vector<Choice> backward_sm90(const Request& request, const device::CudaCaps& caps, const RowsOf& rows_of) {
  const AttentionProblem& problem = request.problem;
  const BackwardMods mods = backward_sm90_mods(problem);
  BackwardSm90Config config = with_gradients(backward_sm90_config(problem, mods), *request.backward);
  const BackwardReads reads = backward_reads(problem, request.options.bindings, mods.kv_start);
  std::vector<Choice> choices;
  const auto add = [&](const Tiled& tiled, const BackwardSm90Config& each, const BackwardMods& of_each) {
    Plan& own = choices.emplace_back(tiled.choice).plan;
    BackwardSm90Config config_of_each = each;
    config_of_each.shares = tiled.schedule.share_places > 0;
    own.family_part = config_of_each;
    own.predicted = predict(problem, each, tiled.schedule, caps);
    if (reads.visits_pairs()) own.predicted->seconds *= 1 + kReadsShare;
    own.predicted->bytes += tiled.copied_bytes;
    own.predicted->seconds += tiled.copied_bytes / kSm90Rates.memory_bytes_per_second;
    describe(problem, config_of_each, of_each, reads, own);
  };
  if (config.ring) {
    const Tiled tiled = tile(request, caps, rows_of, config, reads, true);
    for (const BackwardSm90Config& each : configs_of(config)) {
      if (each.has_converters()) add(tiled, each, mods);
    }
    // The compiler may have no registers for a mod and a ring. Unless one is asked for, a kernel without is better than
    // a frugal one.
    if (base::value_of(base::Option::d_q_ring).empty()) choices.erase(choices.begin() + 1, choices.end());
    config.ring = false;
  }
  Tiled tiled = tile(request, caps, rows_of, config, reads, true);
  for (const BackwardSm90Config& each : configs_of(config)) add(tiled, each, mods);
  if (tiled.schedule.share_places > 0) {  // for which the compiler may have no registers, either
    tiled = tile(request, caps, rows_of, config, reads, false);
    for (const BackwardSm90Config& each : configs_of(config)) add(tiled, each, mods);
  }
  if (!mods.places.any()) return choices;
  // The compiler may refuse all of those.
  const BackwardMods left = backward_mods(problem);
  BackwardSm90Config of_left = with_gradients(backward_sm90_config(problem, left), *request.backward);
  of_left.ring = false;
  for (const BackwardSm90Config& each : configs_of(of_left)) add(tiled, each, left);
  return choices;
}

}  // namespace heddle::plan
