// The order of a backward's launch as plain data: every tile of keys of every unit belongs to one task, whose queries
// are in the workspace, in a place of their own.
#include "families/cpu/cpu_backward_schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "families/cpu/cpu_backward_plans.h"
#include "families/cpu/cpu_forward_costs.h"
#include "families/cpu/scheduled_problem.h"

namespace heddle::cpu {
namespace {

problem::AttentionProblem backward_of(std::int64_t q_heads, std::int64_t kv_heads,
                                      const std::vector<Sequence>& sequences) {
  problem::AttentionProblem problem = problem_of(q_heads, kv_heads, sequences);
  problem.pass = problem::Pass::backward;
  problem.wanted.q = true;
  return problem;
}

plan::CpuBackwardSplit split_of(std::int64_t pieces) {
  plan::CpuBackwardSplit split;
  split.tile_rows = 48;
  split.pieces = pieces;
  return split;
}

using Unit = std::vector<KeyGroup>;

std::int64_t most_keys(const Unit& unit) {
  std::int64_t keys = 0;
  for (const KeyGroup& group : unit) keys = std::max(keys, group.keys);
  return keys;
}

std::int64_t query_bytes(const problem::AttentionProblem& problem, const plan::CpuBackwardSplit& split,
                         const Unit& unit) {
  std::int64_t bytes = 0;
  for (const KeyGroup& group : unit) {
    for (const std::int64_t sequence : group.sequences) {
      const std::int64_t q_len = problem.sequences[static_cast<std::size_t>(sequence)].q_len;
      bytes += problem.group() * plan::cpu_backward_queries(problem, split, q_len).bytes;
    }
  }
  return bytes;
}

using Tile = std::tuple<std::int64_t, std::int64_t, std::int64_t>;  // sequence, kv head, tile of keys

/// Each tile of keys once, with the queries of all heads of its group.
void expect_covers(const problem::AttentionProblem& problem, const plan::CpuBackwardSplit& split) {
  const BackwardSchedule schedule(problem, split, nullptr);
  std::map<Tile, int> tiles;
  for (std::int64_t i = 0; i < schedule.waves(); ++i) {
    const BackwardWave wave = schedule.wave(i);
    std::int64_t largest = 0;
    for (const Unit& unit : wave.units) largest = std::max(largest, query_bytes(problem, split, unit));
    EXPECT_EQ(wave.largest_unit, largest);
    std::int64_t end = 0;
    std::map<std::int64_t, std::int64_t> units;
    for (const QueryUnit& unit : wave.queries) {
      const std::int64_t q_len = problem.sequences[static_cast<std::size_t>(unit.sequence)].q_len;
      units[unit.offset] = plan::cpu_backward_queries(problem, split, q_len).bytes;
      EXPECT_EQ(&schedule.query_unit(wave, unit.sequence, unit.head), &unit);
    }
    for (const auto& [offset, bytes] : units) {
      EXPECT_GE(offset, end);
      end = offset + bytes;
    }
    EXPECT_LE(end, plan::cpu_backward_wave_bytes(problem, split));
    std::vector<int> tasks(wave.units.size());
    for (const std::vector<KeyTask>& lane : wave.lanes) {
      for (const KeyTask& task : lane) {
        EXPECT_LT(task.piece, split.pieces);
        const Unit& unit = wave.units[static_cast<std::size_t>(task.unit)];
        if (split.pieces > 1 || most_keys(unit) > 0) {
          EXPECT_LT(task.first_tile, task.end_tile);
        }
        ++tasks[static_cast<std::size_t>(task.unit)];
        for (const KeyGroup& group : unit) {
          for (const std::int64_t sequence : group.sequences) {
            for (std::int64_t tile = task.first_tile; tile < task.end_tile; ++tile) {
              ++tiles[{sequence, group.kv_head, tile}];
            }
          }
        }
      }
    }
    // A unit's only task prepares and stores its queries, without a key, too.
    if (split.pieces == 1) {
      EXPECT_EQ(std::ranges::count(tasks, 1), std::ssize(wave.units));
    }
  }
  for (std::int64_t b = 0; b < problem.batch; ++b) {
    const std::int64_t keys = problem.sequences[static_cast<std::size_t>(b)].kv_len;
    for (std::int64_t head = 0; head < problem.kv_heads; ++head) {
      for (std::int64_t tile = 0; tile * split.tile_keys < keys; ++tile) {
        const int count = tiles[Tile(b, head, tile)];
        EXPECT_EQ(count, 1) << "sequence " << b << " head " << head << " tile " << tile;
      }
    }
  }
}

TEST(BackwardSchedule, CoversEachTileOfKeysOnce) {
  const problem::AttentionProblem problem = backward_of(4, 2, kSequences);
  for (const std::int64_t pieces : {1, 3, 8}) expect_covers(problem, split_of(pieces));
}

TEST(BackwardSchedule, UnitsTakeWhatTheSplitJoins) {
  const problem::AttentionProblem problem = backward_of(4, 2, kSequences);
  plan::CpuBackwardSplit split = split_of(2);
  split.all_sequences = true;
  expect_covers(problem, split);
  EXPECT_EQ(BackwardSchedule(problem, split, nullptr).wave(0).units.size(), 2U);
  split.all_heads = true;
  expect_covers(problem, split);
  EXPECT_EQ(BackwardSchedule(problem, split, nullptr).wave(0).units.size(), 1U);
  split = split_of(1);
  split.kv_broadcasts = true;
  expect_covers(problem, split);
  const BackwardWave wave = BackwardSchedule(problem, split, nullptr).wave(0);
  ASSERT_EQ(wave.units.size(), 2U);
  EXPECT_EQ(wave.units[0].size(), 1U) << "one storage of keys";
  EXPECT_EQ(wave.units[0][0].sequences.size(), kSequences.size());
  EXPECT_EQ(wave.units[0][0].keys, 5000);
}

TEST(BackwardSchedule, GoesInWavesThatFit) {
  // 3 times 8192 rows of 64 columns of 4 bytes a head: 6 MiB of q, dO and dq each.
  const problem::AttentionProblem problem = backward_of(300, 300, {{.q_len = 8192, .kv_len = 8192}});
  const plan::CpuBackwardSplit split = split_of(1);
  EXPECT_EQ(plan::cpu_backward_wave_bytes(problem, split), std::int64_t{512} << 20);
  EXPECT_EQ(BackwardSchedule(problem, split, nullptr).waves(), 4);
  expect_covers(problem, split);
}

TEST(BackwardSchedule, LanesTakeTheLongestTasksFirst) {
  const problem::AttentionProblem problem = backward_of(4, 2, kSequences);
  plan::CpuBackwardSplit split = split_of(3);
  split.lanes = 4;
  expect_covers(problem, split);
  const BackwardWave wave = BackwardSchedule(problem, split, nullptr).wave(0);
  ASSERT_EQ(wave.lanes.size(), 4U);
  for (std::size_t lane = 1; lane < 4; ++lane) {
    EXPECT_GE(wave.lanes[lane - 1].front().cost, wave.lanes[lane].front().cost);
  }
}

TEST(BackwardSchedule, TilesOfQueriesKeepToRowsOfTheBlockMask) {
  const problem::AttentionProblem problem = backward_of(1, 1, {{.q_len = 250, .kv_len = 100}});
  const MaskShape shape = {.heads = 1, .sequences = problem.sequences};
  const BlockMask mask = BlockMask::build(leaf::kv_idx() <= leaf::q_idx(), shape, {.q = 100, .kv = 64});
  const plan::CpuBackwardSplit split = split_of(1);
  const BackwardSchedule schedule(problem, split, &mask);
  std::int64_t next = 0;
  for (const QueryTile& tile : schedule.tiles(0)) {
    EXPECT_EQ(tile.q_first, next);
    EXPECT_EQ(tile.q_first / 100, tile.q_block);
    EXPECT_EQ((tile.q_first + tile.rows - 1) / 100, tile.q_block);
    EXPECT_LE(tile.rows, split.tile_rows);
    next = tile.q_first + tile.rows;
  }
  EXPECT_EQ(next, 250);
}

/// Predicted for 8 heads of 1024 keys each, one thread.
plan::Prediction predicted(std::int64_t queries, std::int64_t l3_bytes) {
  plan::Plan plan;
  plan.threads = 1;
  plan.family_part = split_of(1);
  device::Caps caps;
  caps.cores = 1;
  caps.vector_bytes = 64;
  caps.l3_bytes = l3_bytes;
  const problem::AttentionProblem problem = backward_of(8, 8, {{.q_len = queries, .kv_len = 1024}});
  return plan::cpu_backward_prediction(problem, plan, nullptr, caps);
}

// A key costs as much as 18 queries that attend it, whatever there are.
TEST(CpuBackwardPrediction, CountsKeysBesideElements) {
  constexpr std::int64_t kAll = std::int64_t{1} << 40;
  EXPECT_DOUBLE_EQ(predicted(20, kAll).seconds, 2 * predicted(1, kAll).seconds);
  EXPECT_DOUBLE_EQ(predicted(20, kAll).flops, 20 * predicted(1, kAll).flops);
}

// GFLOP/s of one thread, as docs/notes/cpu_amx.md has them.
TEST(CpuBackwardPrediction, AmxTakesTheTimeThatWasMeasured) {
  for (const auto& [dim, gflops] : {std::pair{64, 503.0}, {128, 610.0}}) {
    problem::AttentionProblem problem = backward_of(2, 2, {{.q_len = 2048, .kv_len = 2048}});
    problem.qk_dim = problem.v_dim = dim;
    plan::Plan plan;
    plan.threads = 1;
    plan::CpuBackwardSplit split = split_of(1);
    split.unit = device::MatrixUnit::amx;
    plan.family_part = split;
    device::Caps caps;
    caps.l3_bytes = std::int64_t{1} << 40;
    const plan::Prediction one = plan::cpu_backward_prediction(problem, plan, nullptr, caps);
    EXPECT_NEAR(one.flops / one.seconds * 1e-9, gflops, 0.01 * gflops);
  }
}

TEST(CpuBackwardPrediction, ReadsWhatNoCacheHolds) {
  const plan::Prediction one = predicted(1, 0);
  EXPECT_DOUBLE_EQ(one.seconds, one.bytes / plan::kCpuRates.memory_bytes_per_second);
  EXPECT_LT(predicted(1, static_cast<std::int64_t>(one.bytes)).seconds, one.seconds);
}

}  // namespace
}  // namespace heddle::cpu
