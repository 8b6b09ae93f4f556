// The order of a launch as plain data: every score that attends belongs to one tile, and what a wave packs has its own
// place in the workspace.
#include "families/cpu/cpu_forward_schedule.h"

#include <gmock/gmock.h>

#include <map>
#include <tuple>

#include "families/cpu/cpu_forward_plans.h"
#include "families/cpu/scheduled_problem.h"
#include "heddle/mods.h"

namespace heddle::cpu {
namespace {

using Element = std::tuple<std::int64_t, std::int64_t, std::int64_t>;  // sequence, head, row

/// The keys of a row's pieces, by the piece's number: together all, one after the other.
struct RowPieces {
  std::map<std::int64_t, std::pair<std::int64_t, std::int64_t>> keys;
  std::int64_t pieces = 0, merged = 0;
};

std::int64_t keys_in_runs(const Schedule& schedule, const TileTask& tile) {
  std::int64_t keys = 0;
  for (const Run& run : schedule.runs(tile)) {
    keys += std::max<std::int64_t>(0, std::min(run.end * schedule.block_keys(), tile.key_end) -
                                          std::max<std::int64_t>(run.begin * schedule.block_keys(), tile.key_begin));
  }
  return keys;
}

/// Every row of every head, with all keys, in tiles that do not cross rows of the block mask.
void expect_covers(const problem::AttentionProblem& problem, const Schedule& schedule, std::int64_t block_rows) {
  std::map<Element, RowPieces> all;
  for (std::int64_t i = 0; i < schedule.waves(); ++i) {
    const Wave wave = schedule.wave(i);
    EXPECT_TRUE(std::ranges::is_sorted(wave.tiles, std::greater<>(), &TileTask::cost));
    for (const TileTask& tile : wave.tiles) {
      EXPECT_GT(tile.rows, 0);
      EXPECT_LE(tile.rows * tile.heads, kTileRows);
      EXPECT_EQ(tile.q_first / block_rows, tile.q_block);
      EXPECT_EQ((tile.q_first + tile.rows - 1) / block_rows, tile.q_block);
      EXPECT_EQ(tile.head / problem.group(), (tile.head + tile.heads - 1) / problem.group());
      if (tile.pieces > 1) {
        EXPECT_EQ(tile.k_unit, -1);
        EXPECT_LE(keys_in_runs(schedule, tile), plan::kSplitKeys);
        EXPECT_GT(keys_in_runs(schedule, tile), 0);
      }
      EXPECT_EQ(tile.merge >= 0, tile.pieces > 1);
      for (std::int64_t head = tile.head; head < tile.head + tile.heads; ++head) {
        for (std::int64_t row = tile.q_first; row < tile.q_first + tile.rows; ++row) {
          RowPieces& own = all[{tile.sequence, head, row}];
          own.pieces = tile.pieces;
          EXPECT_TRUE(own.keys.insert({tile.piece, {tile.key_begin, tile.key_end}}).second);
        }
      }
    }
    for (const TileTask& tile : wave.merges) {
      for (std::int64_t head = tile.head; head < tile.head + tile.heads; ++head) {
        for (std::int64_t row = 0; row < tile.rows; ++row) ++all[{tile.sequence, head, tile.q_first + row}].merged;
      }
    }
  }
  std::int64_t rows = 0;
  for (std::int64_t n = 0; n < problem.batch; ++n) {
    const Sequence& sequence = problem.sequences[static_cast<std::size_t>(n)];
    for (std::int64_t head = 0; head < problem.q_heads; ++head) {
      for (std::int64_t row = 0; row < sequence.q_len; ++row, ++rows) {
        SCOPED_TRACE(testing::Message() << "sequence " << n << " head " << head << " row " << row);
        const RowPieces& own = all[{n, head, row}];
        ASSERT_EQ(std::ssize(own.keys), own.pieces);
        ASSERT_EQ(own.merged, own.pieces > 1 ? 1 : 0);
        std::int64_t end = 0;
        for (const auto& [piece, keys] : own.keys) {
          ASSERT_EQ(keys.first, end);
          end = keys.second;
        }
        ASSERT_EQ(end, sequence.kv_len);
      }
    }
  }
  EXPECT_EQ(std::ssize(all), rows);
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

TEST(CpuSchedule, PiecesFollowTheKeysThatAttend) {
  const std::vector<Sequence> sequences = {{.q_len = 1, .kv_len = 100000, .q_start = 99999}};
  const problem::AttentionProblem problem = problem_of(8, 1, sequences);
  const std::int64_t bytes = plan::cpu_forward_pair_bytes(problem, kTileRows);
  const auto keys_of = [&](const Expr& mask) {
    const BlockMask rows = BlockMask::build(mask, {8, sequences}, {48, 64});
    const Schedule schedule(problem, 1, 1, kTileRows, bytes, &rows);
    std::vector<std::int64_t> keys;
    for (const TileTask& tile : schedule.wave(0).tiles) keys.push_back(keys_in_runs(schedule, tile));
    return keys;
  };
  const Expr back = leaf::q_idx() - leaf::kv_idx();
  EXPECT_THAT(keys_of(back < 900), testing::ElementsAre(testing::AllOf(testing::Ge(900), testing::Le(1024))));
  // The first keys and a window: two runs in pieces of one size, whole chunks, but the last.
  EXPECT_THAT(keys_of((back < 2000) | (leaf::kv_idx() < 100)), testing::SizeIs(4));
  for (const std::int64_t keys : keys_of((back < 2000) | (leaf::kv_idx() < 100))) {
    EXPECT_GT(keys, 0);
    EXPECT_LE(keys, 640);
  }
  EXPECT_THAT(keys_of(back < 0), testing::ElementsAre(0));
}

TEST(CpuSchedule, PartialResultsHaveRoomForThePiecesOfFewerKeys) {
  for (const std::int64_t kv_heads : {1, 2, 8}) {
    const problem::AttentionProblem problem = problem_of(8, kv_heads, {{.q_len = 1, .kv_len = 1}});
    std::int64_t most = 1;
    for (std::int64_t keys = 1; keys < 70000; keys += 63) {
      const std::int64_t piece = plan::cpu_forward_piece_keys(problem, keys);
      most = std::max(most, (keys + piece - 1) / piece);
      ASSERT_LE(most, plan::cpu_forward_partials(problem, {.q_len = 1, .kv_len = keys}).pieces) << keys;
    }
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

// Keys are packed where packing costs less than to read them in place for so many queries.
TEST(Schedule, PacksFewKeysOfManyQueries) {
  const auto in_place = [](std::int64_t queries, std::int64_t keys, const Expr& mask = {}, bool bricks = false) {
    problem::AttentionProblem problem = problem_of(4, 2, {{.q_len = queries, .kv_len = keys}});
    problem.mask_mod = mask;
    return plan::cpu_forward_in_place(problem, problem.sequences[0], 96, bricks);
  };
  EXPECT_TRUE(in_place(2, 1));  // 4 rows of each KV head
  EXPECT_FALSE(in_place(3, 6 * 6 / 2));
  EXPECT_TRUE(in_place(3, 6 * 6 / 2 + 1));
  EXPECT_FALSE(in_place(32, 64 * 64 / 2));
  EXPECT_TRUE(in_place(32, 64 * 64 / 2 + 1));
  EXPECT_FALSE(in_place(32, 64 * 64 / 8, mods::causal()));
  EXPECT_TRUE(in_place(32, 64 * 64 / 8 + 1, mods::causal()));  // of which a mask may leave few
  EXPECT_FALSE(in_place(49, 1'000'000));                       // more than a tile
  EXPECT_TRUE(in_place(48, 1, {}, true));                      // by AMX
}

}  // namespace
}  // namespace heddle::cpu
