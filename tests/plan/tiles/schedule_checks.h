// Checks of the lists that a launch of the Hopper family walks: every query once, the mask's blocks, even CTAs.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <string>
#include <tuple>
#include <vector>

#include "families/forward_sm90/forward_sm90.h"
#include "families/forward_sm90/forward_sm90_costs.h"
#include "plan/hopper.h"
#include "plan/tiles/packed_heads.h"

namespace heddle::test::schedules {

using plan::TileSchedule;
using shared::ForwardSm90Config;
using TileKey = std::tuple<int, int, int>;  // batch, head, q_tile
using BoxKey = std::tuple<int, int, int>;   // batch, head, queries / 64: a warpgroup's share of a tile

inline ForwardSm90Config config_of(int dim, int warpgroups, int kv_block, bool masked = false) {
  return {.qk_dim = dim,
          .v_dim = dim,
          .warpgroups = warpgroups,
          .kv_block = kv_block,
          .stages = 2,
          .q_buffers = 1,
          .o_panels = 1,
          .f16 = false,
          .lse = true,
          .masked = masked};
}

inline std::int64_t blocks(std::int64_t length, std::int64_t block) { return (length + block - 1) / block; }

inline const Sequence& sequence_of(const problem::AttentionProblem& problem, int batch) {
  return problem.sequences.at(static_cast<std::size_t>(batch));
}

/// A character for each key block of a sequence, all of them '.'.
inline std::string no_blocks(const problem::AttentionProblem& problem, const ForwardSm90Config& config, int batch) {
  return std::string(static_cast<std::size_t>(blocks(sequence_of(problem, batch).kv_len, config.kv_block)), '.');
}

/// The key blocks of 64 queries, a character each: '.' not seen, '#' full, '+' partial.
inline std::string expected_classes(const problem::AttentionProblem& problem, const ForwardSm90Config& config,
                                    const BlockMask* mask, const BoxKey& at) {
  const auto& [batch, head, box] = at;
  std::string classes = no_blocks(problem, config, batch);
  if (mask == nullptr) std::ranges::fill(classes, '#');
  if (mask != nullptr) {
    for (const Run& run : mask->row(batch, head, box * std::int64_t{64} / mask->block().q)) {
      for (std::size_t c = 0; c < classes.size(); ++c) {
        const auto mask_block = static_cast<std::int64_t>(c) * config.kv_block / mask->block().kv;
        if (mask_block >= run.begin && mask_block < run.end) classes[c] = run.kind == RunKind::full ? '#' : '+';
      }
    }
  }
  return classes;
}

/// A tile's flags, a word for each step.
inline std::vector<int> item_flags(const TileSchedule& schedule, const shared::WorkItem& item) {
  std::vector<int> flags;
  const shared::KvRun* left = nullptr;
  for (int r = item.first_run; r < item.first_run + item.runs; ++r) {
    const shared::KvRun& run = schedule.runs.at(static_cast<std::size_t>(r));
    EXPECT_LT(run.begin, run.end);
    EXPECT_GE(run.begin, left == nullptr ? 0 : left->end) << "runs out of order";
    EXPECT_FALSE(left != nullptr && left->end == run.begin && (left->flags & 63) == (run.flags & 63))
        << "runs not merged";
    for (int c = run.begin; c < run.end; ++c) flags.push_back(c + 1 < run.end ? run.flags : run.last_flags);
    left = &run;
  }
  EXPECT_EQ(item.steps, std::ssize(flags));
  const shared::KvRun& first = schedule.runs.at(static_cast<std::size_t>(item.first_run));
  EXPECT_EQ(std::tie(item.run.begin, item.run.end, item.run.flags, item.run.last_flags),
            std::tie(first.begin, first.end, first.flags, first.last_flags));
  return flags;
}

inline bool attends(int flags, int warpgroup) { return (flags & shared::kStepAttends << warpgroup) != 0; }

/// As expected_classes(), of one warpgroup of a tile.
inline std::string item_classes(const problem::AttentionProblem& problem, const ForwardSm90Config& config,
                                const TileSchedule& schedule, const shared::WorkItem& item, int warpgroup) {
  std::string classes = no_blocks(problem, config, item.batch);
  for (int r = item.first_run; r < item.first_run + item.runs; ++r) {
    const shared::KvRun& run = schedule.runs.at(static_cast<std::size_t>(r));
    const bool partial = (run.flags & shared::kStepPartial << warpgroup) != 0;
    EXPECT_FALSE(partial && !attends(run.flags, warpgroup));
    if (!attends(run.flags, warpgroup)) continue;
    for (int c = run.begin; c < run.end; ++c) classes.at(static_cast<std::size_t>(c)) = partial ? '+' : '#';
  }
  if (config.descending) std::ranges::reverse(classes);
  return classes;
}

/// The queries of every tile and every fill, 64 at a time, see what the mask says; those past their sequence's end see
/// nothing.
inline void expect_every_query_once(const problem::AttentionProblem& problem, const ForwardSm90Config& config,
                                    const BlockMask* mask, const TileSchedule& schedule) {
  std::map<BoxKey, std::string> found;
  for (const shared::WorkItem& item : schedule.items) {
    EXPECT_GE(item.steps, 1);
    const std::string nothing = no_blocks(problem, config, item.batch);
    const std::int64_t boxes = blocks(sequence_of(problem, item.batch).q_len, 64);
    for (int w = 0; w < config.warpgroups; ++w) {
      const BoxKey box{item.batch, item.head, item.q_tile * config.warpgroups + w};
      const std::string classes = item_classes(problem, config, schedule, item, w);
      if (std::get<2>(box) >= boxes) {
        EXPECT_EQ(classes, nothing) << "queries past the end attend";
      } else if (classes != nothing) {
        EXPECT_TRUE(found.emplace(box, classes).second) << "queries twice";
      }
    }
  }
  for (const shared::RowFill& fill : schedule.fills) {
    const Sequence& sequence = sequence_of(problem, fill.batch);
    const std::int64_t first = fill.row - sequence.q_begin;
    if (first >= sequence.q_len) continue;
    const BoxKey box{fill.batch, fill.head, static_cast<int>(first / 64)};
    EXPECT_EQ(first % 64, 0);
    EXPECT_EQ(fill.rows, std::min<std::int64_t>(64, sequence.q_len - first));
    EXPECT_TRUE(found.emplace(box, no_blocks(problem, config, fill.batch)).second) << "queries twice";
  }
  std::map<BoxKey, std::string> expected;
  for (int b = 0; b < problem.batch; ++b) {
    for (int h = 0; h < problem.q_heads; ++h) {
      for (int box = 0; box < blocks(sequence_of(problem, b).q_len, 64); ++box) {
        expected[{b, h, box}] = expected_classes(problem, config, mask, {b, h, box});
      }
    }
  }
  EXPECT_EQ(found, expected);
}

/// Rows past the end of a padded sequence are filled, each once, and no others that lie outside of their sequence.
inline void expect_padding_filled(const problem::AttentionProblem& problem, const TileSchedule& schedule) {
  std::map<std::tuple<int, int, int>, int> found, expected;  // batch, head, row
  for (const shared::RowFill& fill : schedule.fills) {
    const Sequence& sequence = sequence_of(problem, fill.batch);
    EXPECT_LE(fill.rows, 64);
    EXPECT_GE(fill.row, sequence.q_begin);
    for (int row = fill.row; row < fill.row + fill.rows; ++row) {
      if (row - sequence.q_begin >= sequence.q_len) ++found[{fill.batch, fill.head, row}];
    }
  }
  for (int b = 0; b < problem.batch && !problem.packed; ++b) {
    for (int h = 0; h < problem.q_heads; ++h) {
      for (auto row = static_cast<int>(sequence_of(problem, b).q_len); row < problem.q_rows; ++row) {
        expected[{b, h, row}] = 1;
      }
    }
  }
  EXPECT_EQ(found, expected);
}

/// Each step of a tile says whether all warpgroups attend the next one, and an item says it of its first: consumers
/// look no further.
inline void expect_steps_foretell(const ForwardSm90Config& config, const TileSchedule& schedule) {
  for (std::size_t i = 0; i < schedule.items.size(); ++i) {
    const shared::WorkItem& item = schedule.items[i];
    int before = item.before;
    for (const int flags : item_flags(schedule, item)) {
      bool all = true;
      for (int w = 0; w < config.warpgroups; ++w) all = all && attends(flags, w);
      EXPECT_EQ((before & shared::kStepNextUneven) != 0, !all) << "item " << i;
      before = flags;
    }
    EXPECT_EQ(before & shared::kStepNextUneven, 0) << "item " << i << ": another tile's first step is not known";
  }
}

/// `least`: of a step.
inline double clocks_of(const TileSchedule& schedule, const ForwardSm90Config& config, const shared::WorkItem& item,
                        double least = 0) {
  const plan::TileClocks clocks = plan::forward_sm90_clocks(config);
  double sum = clocks.tile;
  for (int r = item.first_run; r < item.first_run + item.runs; ++r) {
    const shared::KvRun& run = schedule.runs[static_cast<std::size_t>(r)];
    double attended = 0;
    for (int w = 0; w < config.warpgroups; ++w) {
      const double share = static_cast<double>(run.end - run.begin) / config.warpgroups;
      if (attends(run.flags, w)) attended += share * clocks.full_step;
      if (run.flags & shared::kStepPartial << w) sum += share * (clocks.partial_step - clocks.full_step);
    }
    sum += std::max(attended, least * (run.end - run.begin));
  }
  return sum;
}

/// Drawing leaves no CTA with more than the mean and one tile.
inline void expect_balanced(const ForwardSm90Config& config, const TileSchedule& schedule, const device::CudaCaps& caps,
                            double least = 0) {
  const std::size_t work = std::max(schedule.items.size(), schedule.fills.size());
  ASSERT_EQ(schedule.grid, std::min<int>(caps.multiprocessors, static_cast<int>(work)));
  ASSERT_EQ(schedule.ctas.size(), schedule.items.size());
  std::vector<double> loads(static_cast<std::size_t>(schedule.grid), 0);
  double total = 0, largest = 0;
  for (std::size_t i = 0; i < schedule.items.size(); ++i) {
    const double clocks = clocks_of(schedule, config, schedule.items[i], least);
    loads.at(schedule.ctas[i]) += clocks;
    total += clocks;
    largest = std::max(largest, clocks);
  }
  const double longest = *std::ranges::max_element(loads);
  EXPECT_NEAR(schedule.longest, longest, 1e-3 * longest);
  EXPECT_LE(longest, (total / schedule.grid + largest) * 1.001);
}

inline void expect_valid(const problem::AttentionProblem& problem, const ForwardSm90Config& config,
                         const BlockMask* mask, const device::CudaCaps& caps) {
  const TileSchedule schedule = plan::forward_sm90_schedule(problem, config, mask, caps);
  expect_every_query_once(problem, config, mask, schedule);
  expect_padding_filled(problem, schedule);
  expect_steps_foretell(config, schedule);
  // Few queries of several heads: steps take no less than their keys and values do.
  const double least = plan::has_few_queries(problem) ? plan::forward_sm90_clocks(config).loads : 0;
  if (problem.batch * problem.q_heads * problem.q_rows > 0) expect_balanced(config, schedule, caps, least);
}

}  // namespace heddle::test::schedules
