// The order of a launch as plain data: every score that attends belongs to one tile, and what a wave packs has its own
// place in the workspace.
#include <gmock/gmock.h>

#include <map>
#include <tuple>

#include "families/cpu/cpu_forward_plans.h"
#include "families/cpu/cpu_forward_schedule.h"

namespace heddle::cpu {
namespace {

constexpr std::int64_t kTileRows = 48;

problem::AttentionProblem problem_of(std::int64_t q_heads, std::int64_t kv_heads,
                                     const std::vector<Sequence>& sequences) {
  problem::AttentionProblem problem;
  problem.batch = std::ssize(sequences);
  problem.q_heads = q_heads;
  problem.kv_heads = kv_heads;
  problem.qk_dim = 24;
  problem.v_dim = 40;
  problem.sequences = sequences;
  return problem;
}

const std::vector<Sequence> kSequences = {{.q_len = 100, .kv_len = 300},
                                          {.q_len = 0, .kv_len = 40},
                                          {.q_len = 7, .kv_len = 5000},
                                          {.q_len = 49, .kv_len = 0},
                                          {.q_len = 1, .kv_len = 2049}};

using Element = std::tuple<std::int64_t, std::int64_t, std::int64_t>;  // sequence, head, row

/// Every row of every head, with all keys, in tiles that do not cross rows of the block mask.
void expect_covers(const problem::AttentionProblem& problem, const Schedule& schedule, std::int64_t block_rows) {
  std::map<Element, std::int64_t> keys, merged;
  for (std::int64_t i = 0; i < schedule.waves(); ++i) {
    const Wave wave = schedule.wave(i);
    EXPECT_TRUE(std::ranges::is_sorted(wave.tiles, std::greater<>(), &TileTask::cost));
    for (const TileTask& tile : wave.tiles) {
      EXPECT_GT(tile.rows, 0);
      EXPECT_LE(tile.rows * tile.heads, kTileRows);
      EXPECT_EQ(tile.q_first / block_rows, tile.q_block);
      EXPECT_EQ((tile.q_first + tile.rows - 1) / block_rows, tile.q_block);
      EXPECT_EQ(tile.head / problem.group(), (tile.head + tile.heads - 1) / problem.group());
      for (std::int64_t head = tile.head; head < tile.head + tile.heads; ++head) {
        for (std::int64_t row = tile.q_first; row < tile.q_first + tile.rows; ++row) {
          // Pieces come in any order, but each starts where a whole number of them ends.
          EXPECT_EQ(tile.key_begin, tile.piece * plan::kSplitKeys);
          keys[{tile.sequence, head, row}] += tile.key_end - tile.key_begin + 1;
        }
      }
    }
    for (const TileTask& tile : wave.merges) {
      for (std::int64_t head = tile.head; head < tile.head + tile.heads; ++head) {
        for (std::int64_t row = 0; row < tile.rows; ++row) ++merged[{tile.sequence, head, tile.q_first + row}];
      }
    }
  }
  std::int64_t rows = 0;
  for (std::int64_t n = 0; n < problem.batch; ++n) {
    const Sequence& sequence = problem.sequences[static_cast<std::size_t>(n)];
    const std::int64_t pieces = plan::cpu_forward_in_place(problem, sequence, kTileRows)
                                    ? plan::cpu_forward_partials(problem, sequence).pieces
                                    : 1;
    for (std::int64_t head = 0; head < problem.q_heads; ++head) {
      for (std::int64_t row = 0; row < sequence.q_len; ++row, ++rows) {
        const Element element = {n, head, row};
        ASSERT_EQ(keys[element], sequence.kv_len + pieces) << "sequence " << n << " head " << head << " row " << row;
        ASSERT_EQ(merged[element], pieces > 1 ? 1 : 0) << "sequence " << n << " head " << head << " row " << row;
      }
    }
  }
  EXPECT_EQ(std::ssize(keys), rows);
}

TEST(CpuSchedule, CoversEveryRowOfEveryHeadOnce) {
  const problem::AttentionProblem problem = problem_of(6, 2, kSequences);
  const std::int64_t bytes = plan::cpu_forward_pair_bytes(problem, kTileRows);
  expect_covers(problem, Schedule(problem, 5, 5, kTileRows, bytes, nullptr), 1000);
  for (const std::int64_t block_rows : {1, 5, 48, 64, 500}) {
    SCOPED_TRACE(block_rows);
    const BlockMask mask =
        BlockMask::build(leaf::kv_idx() >= leaf::q_idx() * leaf::h(), {6, kSequences}, {block_rows, 32});
    expect_covers(problem, Schedule(problem, 5, 5, kTileRows, bytes, &mask), block_rows);
  }
}

TEST(CpuSchedule, HeadsOfOneTileSeeTheSameBlocks) {
  const problem::AttentionProblem problem = problem_of(8, 1, {{.q_len = 4, .kv_len = 256}});
  const std::int64_t bytes = plan::cpu_forward_pair_bytes(problem, kTileRows);
  const auto heads_of_tiles = [&](const BlockMask* mask) {
    std::vector<std::int64_t> heads;
    for (const TileTask& tile : Schedule(problem, 1, 1, kTileRows, bytes, mask).wave(0).tiles) {
      heads.push_back(tile.heads);
    }
    return heads;
  };
  EXPECT_THAT(heads_of_tiles(nullptr), testing::ElementsAre(8));
  const MaskShape shape{8, problem.sequences};
  const BlockMask shared = BlockMask::build(leaf::kv_idx() <= leaf::q_idx(), shape, {48, 64});
  EXPECT_THAT(heads_of_tiles(&shared), testing::ElementsAre(8));
  const BlockMask by_pairs = BlockMask::build(leaf::kv_idx() < (floor_div(leaf::h(), 2) + 1) * 64, shape, {48, 64});
  EXPECT_THAT(heads_of_tiles(&by_pairs), testing::ElementsAre(2, 2, 2, 2));
}

TEST(CpuSchedule, WhatAWaveHoldsFitsAndDoesNotOverlap) {
  for (const bool shared : {false, true}) {
    const problem::AttentionProblem problem = problem_of(6, 2, kSequences);
    const std::int64_t all = plan::cpu_forward_pair_bytes(problem, kTileRows);
    // The sequence of 5000 keys is read in place, so that of 300 needs the most at one time.
    const std::int64_t largest =
        plan::cpu_forward_packed_k_bytes(problem, 300) + plan::cpu_forward_packed_v_bytes(problem, 300);
    for (const std::int64_t bytes : {largest, all}) {
      const Schedule schedule(problem, shared ? 1 : 5, 5, kTileRows, bytes, nullptr);
      for (std::int64_t i = 0; i < schedule.waves(); ++i) {
        const Wave wave = schedule.wave(i);
        std::map<std::int64_t, std::int64_t> ends;  // by offset
        for (const PackedUnit& unit : wave.k_units) {
          ends[unit.offset] = unit.offset + plan::cpu_forward_packed_k_bytes(problem, unit.keys);
          EXPECT_EQ(unit.keys, shared ? 300 : problem.sequences[static_cast<std::size_t>(unit.sequence)].kv_len);
        }
        for (const PackedUnit& unit : wave.v_units) {
          ends[unit.offset] = unit.offset + plan::cpu_forward_packed_v_bytes(problem, unit.keys);
        }
        for (const PartialUnit& unit : wave.partials) {
          const plan::CpuForwardPartials layout =
              plan::cpu_forward_partials(problem, problem.sequences[static_cast<std::size_t>(unit.sequence)]);
          ends[unit.offset] = unit.offset + layout.bytes;
          EXPECT_EQ(unit.rows, layout.rows);
        }
        std::int64_t last = 0;
        for (const auto& [begin, end] : ends) {
          EXPECT_GE(begin, last);
          EXPECT_EQ(begin % plan::kAlignment, 0);
          last = end;
        }
        EXPECT_LE(last, bytes);
      }
    }
  }
}

TEST(CpuSchedule, SharedKeysArePackedOnceAWave) {
  const std::vector<Sequence> sequences(4, {.q_len = 100, .kv_len = 300});
  const problem::AttentionProblem problem = problem_of(2, 2, sequences);
  const Wave wave = Schedule(problem, 1, 4, kTileRows, std::int64_t{1} << 30, nullptr).wave(0);
  EXPECT_EQ(wave.k_units.size(), 2);
  EXPECT_EQ(wave.v_units.size(), 8);
  for (const TileTask& tile : wave.tiles) {
    EXPECT_EQ(wave.k_units[static_cast<std::size_t>(tile.k_unit)].kv_head, tile.head);
    EXPECT_EQ(wave.v_units[static_cast<std::size_t>(tile.v_unit)].kv_head, tile.head);
    EXPECT_EQ(wave.v_units[static_cast<std::size_t>(tile.v_unit)].sequence, tile.sequence);
  }
}

}  // namespace
}  // namespace heddle::cpu
