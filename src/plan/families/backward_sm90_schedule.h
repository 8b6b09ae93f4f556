// The lists of a launch of backward_sm90: tiles of keys with the runs of queries that attend them, and blocks of rows.
#pragma once

#include <cstdint>
#include <vector>

#include "heddle/block_mask.h"
#include "problem/problem.h"
#include "shared/backward_sm90.h"
#include "shared/backward_sm90_config.h"

namespace heddle::plan {

struct BackwardSchedule {
  // In the order of their CTAs: of each section of heads the longest first; ordered: the first keys.
  std::vector<shared::BackwardItem> items;
  std::vector<shared::QueryRun> runs;
  std::vector<int> ranks;  // ordered: of each run, how many tiles of the same keys' head visit its blocks before
  // Of each sequence, one behind the other. Lengths on the device: as many as there may be, which each run writes.
  std::vector<shared::RowBlock> blocks;
  std::vector<int> first_blocks;        // of each sequence: number of its first block
  std::int64_t steps = 0, longest = 0;  // of all items, and of the longest
  std::int64_t elements = 0;            // pairs of a query and a key of those steps, those past the ends not counted
};

/// `block_mask` null: everything attends. Its blocks are multiples of 64 queries and 64 keys.
BackwardSchedule backward_sm90_schedule(const problem::AttentionProblem& problem,
                                        const shared::BackwardSm90Config& config, const BlockMask* block_mask);

/// Of all sequences; with lengths on the device, of any that there may be.
std::int64_t count_row_blocks(const problem::AttentionProblem& problem);
/// Of the schedule.
std::int64_t count_tiles(const problem::AttentionProblem& problem, const shared::BackwardSm90Config& config);

}  // namespace heddle::plan
