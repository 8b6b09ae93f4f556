// The turns of a ring of dQ's sums: each unit is converted once, behind all tiles that add to it, and before tiles that
// add to its slot again.
#include "families/backward_sm90/d_q_ring.h"

#include <gtest/gtest.h>

#include <map>
#include <utility>
#include <vector>

#include "families/backward_sm90/backward_sm90.h"
#include "families/backward_sm90/shared/backward_wide_memory.h"
#include "mask/shape.h"
#include "plan/hopper/sm90_chip.h"

namespace heddle::test {
namespace {

using plan::DqRingShape;

struct Problem {
  std::int64_t batch = 1, kv_heads = 1, group = 1;
  std::vector<std::pair<int, int>> lengths{};  // packed: of queries and keys of each sequence
  std::int64_t q_rows = 200, kv_rows = 300;    // not packed
  int dim = 128;
  bool ordered = false;

  problem::AttentionProblem problem() const {
    problem::AttentionProblem problem{};
    problem.batch = lengths.empty() ? batch : std::ssize(lengths);
    problem.kv_heads = kv_heads;
    problem.q_heads = kv_heads * group;
    problem.qk_dim = problem.v_dim = dim;
    problem.packed = !lengths.empty();
    problem.wanted.q = true;
    for (std::int64_t i = 0; i < problem.batch; ++i) {
      Sequence sequence{.q_len = q_rows, .kv_len = kv_rows};
      if (problem.packed) {
        const auto& [queries, keys] = lengths[static_cast<std::size_t>(i)];
        sequence = {.q_begin = problem.q_rows, .q_len = queries, .kv_begin = problem.kv_rows, .kv_len = keys};
        problem.q_rows += queries;
        problem.kv_rows += keys;
      } else {
        problem.q_rows = q_rows;
        problem.kv_rows = kv_rows;
      }
      problem.sequences.push_back(sequence);
    }
    return problem;
  }
  shared::BackwardSm90Config config() const {
    shared::BackwardSm90Config config;
    config.qk_dim = config.v_dim = config.columns = dim;
    config.warpgroups = 2;
    config.d_q = config.ring = true;
    config.ordered = ordered;
    return config;
  }
};

/// Checks the list of a problem in a ring of this shape. Returns how many tiles without keys there are.
int expect_right(const Problem& at, const DqRingShape& shape) {
  const problem::AttentionProblem problem = at.problem();
  const shared::BackwardSm90Config config = at.config();
  const plan::BackwardSm90Schedule schedule = plan::backward_sm90_schedule(problem, config, nullptr, 132, shape);
  EXPECT_EQ(schedule.items.size(), schedule.turns.size());
  std::vector<std::int64_t> adds(static_cast<std::size_t>(shape.sections)), last(adds), converted(adds), units(adds);
  for (std::int64_t s = 0; s < shape.sections; ++s) {
    const Sequence& sequence = problem.sequences[static_cast<std::size_t>(s / problem.kv_heads)];
    const std::int64_t rows = problem.packed ? sequence.q_len : problem.q_rows;
    units[static_cast<std::size_t>(s)] = mask::block_count(rows, shared::kBlockRows) * problem.group();
  }
  for (std::size_t i = 0; i < schedule.items.size(); ++i) {
    if (schedule.items[i].kv_tile < 0) continue;
    const auto section = static_cast<std::size_t>(schedule.turns[i].section);
    EXPECT_EQ(schedule.turns[i].section, schedule.items[i].batch * problem.kv_heads + schedule.items[i].kv_head);
    adds[section] += schedule.items[i].steps * config.d_q_parts();
    last[section] = static_cast<std::int64_t>(i) + 1;
  }
  // Sections that are added to, but for the last ones, which have slots of their own.
  std::vector<std::int64_t> in_ring, places(adds.size(), -1);
  for (std::int64_t s = 0; s < shape.sections - shape.last; ++s) {
    if (adds[static_cast<std::size_t>(s)] == 0) continue;
    places[static_cast<std::size_t>(s)] = std::ssize(in_ring);
    in_ring.push_back(s);
  }
  const auto slot_of = [&](std::int64_t section) {
    const std::int64_t own = section - (shape.sections - shape.last);
    if (own >= 0) return (shape.slots + own) * shape.units;
    return std::max<std::int64_t>(places[static_cast<std::size_t>(section)], 0) % shape.slots * shape.units;
  };
  int without_keys = 0;
  for (std::size_t i = 0; i < schedule.items.size(); ++i) {
    const shared::DqTurn& turn = schedule.turns[i];
    if (schedule.items[i].kv_tile < 0) {
      ++without_keys;
      EXPECT_LT(turn.section, 0);
      EXPECT_EQ(schedule.items[i].steps, 0);
      EXPECT_GT(turn.count, 0) << "a tile that does nothing";
    } else {
      EXPECT_EQ(turn.first_unit + schedule.items[i].kv_head * problem.group(), slot_of(turn.section));
      const std::int64_t before = places[static_cast<std::size_t>(turn.section)] - shape.slots;
      EXPECT_EQ(turn.awaited, before < 0 ? -1 : in_ring[static_cast<std::size_t>(before)]);
      if (before >= 0) {
        const auto of = static_cast<std::size_t>(turn.awaited);
        EXPECT_EQ(turn.awaited_units, units[of]);
        EXPECT_EQ(converted[of], units[of]) << "tile " << i << " waits for what only later ones convert";
      }
    }
    if (turn.count == 0) continue;
    const auto of = static_cast<std::size_t>(turn.converted);
    EXPECT_LE(last[of], static_cast<std::int64_t>(i)) << "tile " << i << " waits for itself or for later ones";
    EXPECT_EQ(turn.adds, adds[of]);
    EXPECT_EQ(turn.first, converted[of]);
    converted[of] += turn.count;
    EXPECT_EQ(turn.slot_unit, slot_of(turn.converted));
    EXPECT_EQ(turn.clears != 0, places[of] >= 0 && places[of] + shape.slots < std::ssize(in_ring));
    EXPECT_EQ(turn.head, turn.converted % problem.kv_heads * problem.group());
    EXPECT_EQ(turn.block, schedule.first_blocks[static_cast<std::size_t>(turn.converted / problem.kv_heads)]);
  }
  EXPECT_EQ(converted, units);
  return without_keys;
}

const Problem kProblems[] = {
    {},
    {.batch = 3, .kv_heads = 5, .group = 2, .dim = 64},
    {.batch = 40, .kv_heads = 16, .q_rows = 512, .kv_rows = 512},
    {.batch = 40, .kv_heads = 16, .q_rows = 65, .kv_rows = 512, .dim = 64, .ordered = true},
    {.batch = 300, .kv_heads = 1, .q_rows = 640, .kv_rows = 100},
    {.batch = 2, .kv_heads = 9, .q_rows = 4096, .kv_rows = 4096},
    {.kv_heads = 3, .lengths = {{100, 200}, {0, 0}, {300, 0}, {0, 70}, {64, 64}, {1000, 1000}, {5, 5}}},
    {.lengths = {{100, 200}, {300, 0}, {300, 0}, {300, 0}, {64, 640}, {300, 0}, {500, 500}}, .dim = 64},
};

TEST(DqRing, EachUnitIsConvertedOnceBehindItsTiles) {
  for (const Problem& at : kProblems) {
    SCOPED_TRACE(&at - kProblems);
    ASSERT_TRUE(plan::takes_d_q_ring(at.problem(), at.config()));
    expect_right(at, plan::d_q_ring_shape(at.problem(), at.config()));
  }
}

TEST(DqRing, FewSlotsAndNoLag) {
  for (const Problem& at : kProblems) {
    SCOPED_TRACE(&at - kProblems);
    DqRingShape shape = plan::d_q_ring_shape(at.problem(), at.config());
    shape.bundle = 1;
    for (const int last : {0, 1}) {
      shape.last = last;
      for (std::int64_t slots = 2; slots <= std::min<std::int64_t>(4, shape.sections - last); ++slots) {
        shape.slots = slots;
        expect_right(at, shape);
      }
    }
  }
}

// A ring is small where there are many heads, and its last tiles are few.
TEST(DqRing, IsSmall) {
  const Problem at{.batch = 32, .kv_heads = 16, .q_rows = 512, .kv_rows = 512};
  const DqRingShape shape = plan::d_q_ring_shape(at.problem(), at.config());
  EXPECT_EQ(shape.sections, 512);
  EXPECT_LE(shape.slots, 72);
  EXPECT_LE(shape.last, 32);
  EXPECT_LE(expect_right(at, shape), 132);
}

TEST(DqRing, WhatHasOneByDefault) {
  const Problem at{.batch = 4, .kv_heads = 4, .q_rows = 2048, .kv_rows = 2048};
  EXPECT_TRUE(plan::prefers_d_q_ring(at.problem(), at.config()));
  shared::BackwardSm90Config ordered = at.config();
  ordered.ordered = true;
  EXPECT_FALSE(plan::prefers_d_q_ring(at.problem(), ordered));
  shared::BackwardSm90Config placed = at.config();
  placed.placed_keys = true;
  EXPECT_FALSE(plan::prefers_d_q_ring(at.problem(), placed));
  const Problem grouped{.batch = 4, .kv_heads = 1, .group = 4, .q_rows = 513, .kv_rows = 2048};
  EXPECT_FALSE(plan::prefers_d_q_ring(grouped.problem(), grouped.config()));
  const Problem narrow{.batch = 4, .kv_heads = 1, .group = 4, .q_rows = 2048, .kv_rows = 2048, .dim = 64};
  EXPECT_TRUE(plan::prefers_d_q_ring(narrow.problem(), narrow.config()));
  const Problem long_and_narrow{.batch = 4, .kv_heads = 1, .group = 4, .q_rows = 2049, .kv_rows = 2048, .dim = 64};
  EXPECT_FALSE(plan::prefers_d_q_ring(long_and_narrow.problem(), long_and_narrow.config()));
  const Problem long_heads{.batch = 1, .kv_heads = 4, .q_rows = 65536, .kv_rows = 65536, .dim = 64};
  EXPECT_TRUE(plan::prefers_d_q_ring(long_heads.problem(), long_heads.config()));
  const Problem long_and_wide{.batch = 1, .kv_heads = 4, .q_rows = 4096, .kv_rows = 4096};
  EXPECT_FALSE(plan::prefers_d_q_ring(long_and_wide.problem(), long_and_wide.config()));
  shared::BackwardSm90Config masked = grouped.config();
  masked.masked = true;
  EXPECT_TRUE(plan::prefers_d_q_ring(grouped.problem(), masked));
  EXPECT_TRUE(plan::prefers_d_q_ring(long_and_wide.problem(), masked));
}

TEST(DqRing, HasRoomBesideLseInTwoWords) {
  for (const int dim : {64, 128}) {
    for (const bool apart : {false, true}) {
      if (apart && dim > 64) continue;
      shared::BackwardSm90Config config = Problem{.dim = dim}.config();
      config.lse_rest = true;
      config.d_q_apart = apart;
      config.q_stages = config.d_o_stages = apart ? 4 : 3;
      EXPECT_LE(shared::backward_shared_bytes(config), plan::kSm90SharedMemory) << dim << ' ' << apart;
    }
  }
}

TEST(DqRing, WhatTakesNone) {
  const Problem at;
  problem::AttentionProblem problem = at.problem();
  problem.device_lengths = true;
  EXPECT_FALSE(plan::takes_d_q_ring(problem, at.config()));
  shared::BackwardSm90Config config = at.config();
  config.d_q = false;
  EXPECT_FALSE(plan::takes_d_q_ring(at.problem(), config));
  EXPECT_FALSE(plan::takes_d_q_ring(Problem{.kv_rows = 0}.problem(), at.config()));
  EXPECT_FALSE(plan::takes_d_q_ring(Problem{.q_rows = 0}.problem(), at.config()));
}

}  // namespace
}  // namespace heddle::test
