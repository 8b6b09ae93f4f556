// The state of a forward's plan on the CPU that all of its runs share.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "base/counters.h"
#include "base/kept.h"
#include "families/cpu/cpu_forward_plans.h"
#include "families/cpu/cpu_forward_schedule.h"
#include "families/cpu/cpu_forward_steps.h"
#include "families/cpu/mod_programs.h"

namespace heddle::cpu {

/// Keys that one packing task takes.
inline constexpr std::int64_t kPackKeys = 8 * plan::kPanel;
/// A launch of fewer multiply-adds is over before a second thread would have begun.
inline constexpr std::int64_t kSerialWork = std::int64_t{1} << 21;
/// A guess: AMX multiplies some ten times as fast, and the softmax takes as long as before.
inline constexpr std::int64_t kBrickSerialWork = 4 * kSerialWork;

/// Memory that a run leaves for the next one of its plan.
struct RunMemory {
  std::vector<WorkerMods> mods;  // of each worker
  base::Counters merged;         // pieces that have ended, of each tile in pieces
  StepsLeft left;
};

/// State that all runs of a plan share. Not copied: the schedule points into it.
struct CpuForward {
  problem::AttentionProblem problem;
  plan::Plan plan;
  plan::CpuForwardPart part;
  ModPrograms programs;
  plan::CpuForwardScratch scratch;
  std::int64_t pair_bytes;  // the workspace's first part; the workers' scratch follows
  Schedule schedule;
  std::vector<Wave> waves;
  std::vector<WaveOrder> orders;  // of the waves
  mutable base::Kept<RunMemory> memory;

  explicit CpuForward(const backend::PrepareArguments& arguments)
      : problem(arguments.problem),
        plan(arguments.plan),
        part(plan.part<plan::CpuForwardPart>()),
        programs(problem),
        scratch(plan::cpu_forward_scratch(problem, plan.tile.q, part.bricks(), part.bundles.tiles)),
        pair_bytes(plan.workspace_bytes - plan.threads * scratch.bytes),
        schedule(problem, kv_batch(arguments.tensors.k), kv_batch(arguments.tensors.v), plan.tile.q, pair_bytes,
                 arguments.block_mask, part.bricks()) {
    for (std::int64_t i = 0; i < schedule.waves(); ++i) {
      orders.push_back(order_for(waves.emplace_back(schedule.wave(i))));
    }
  }
  int workers_for(const Wave& wave) const {
    std::int64_t scores = 0;
    for (const TileTask& tile : wave.tiles) scores += tile.cost;
    const bool from_bricks = part.bricks() && !wave.k_units.empty();
    if (scores * (problem.qk_dim + problem.v_dim) < (from_bricks ? kBrickSerialWork : kSerialWork)) return 1;
    return static_cast<int>(std::clamp<std::int64_t>(std::ssize(wave.tiles), 1, plan.threads));
  }
  int most_workers() const {
    int most = 0;
    for (const Wave& wave : waves) most = std::max(most, workers_for(wave));
    return most;
  }
  WaveOrder order_for(const Wave& wave) const {
    return order_of(wave, workers_for(wave), kPackKeys, pair_bytes, part.bundles);
  }
  std::string bundles_text() const {
    const auto is_bundle = [](const Step& step) { return step.tiles > 1; };
    const bool any = std::ranges::any_of(
        orders, [&](const WaveOrder& order) { return std::ranges::any_of(order.steps, is_bundle); });
    if (!any) return {};
    return fmt::format("up to {} tiles go through {} keys at a time, which stay in L2", part.bundles.tiles,
                       part.bundles.keys);
  }
  /// Sequences in pages have keys of their own.
  std::int64_t kv_batch(const ConstTensorView& view) const {
    return problem.page_rows > 0 ? problem.batch : view.shape[0];
  }
  CpuForward(const CpuForward&) = delete;
  CpuForward& operator=(const CpuForward&) = delete;
};

}  // namespace heddle::cpu
