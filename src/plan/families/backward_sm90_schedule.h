// The lists of a backward on a GPU: tiles of keys with the runs of queries that attend them, or tiles of queries with
// runs of keys; and blocks of rows.
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

/// What the rows of a tile are; its steps are of the other.
enum class TileRows : bool { queries, keys };

/// The same for tiles of `shape.rows()` rows and steps of `shape.kv_block`, both multiples of 64. Of queries a tile's
/// kv_head is a query head, and its runs' head the same.
BackwardSchedule backward_schedule(const problem::AttentionProblem& problem, TileRows of,
                                   const shared::TileShape& shape, bool ordered, const BlockMask* block_mask);

/// BackwardSchedule::blocks alone.
std::vector<shared::RowBlock> row_blocks(const problem::AttentionProblem& problem);
/// Of all sequences; with lengths on the device, of any that there may be.
std::int64_t count_row_blocks(const problem::AttentionProblem& problem);
/// Of the schedules.
std::int64_t count_tiles_of(const problem::AttentionProblem& problem, TileRows of, const shared::TileShape& tile);
std::int64_t count_tiles(const problem::AttentionProblem& problem, const shared::BackwardSm90Config& config);

}  // namespace heddle::plan
