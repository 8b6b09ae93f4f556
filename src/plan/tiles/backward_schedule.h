// The lists of a backward on a GPU: tiles of keys with the runs of queries that attend them, or tiles of queries with
// runs of keys; and blocks of rows.
#pragma once

#include <cstdint>
#include <vector>

#include "heddle/block_mask.h"
#include "problem/problem.h"
#include "shared/backward_tiles.h"
#include "shared/tile_shape.h"

namespace heddle::plan {

struct BackwardSchedule {
  // In the order of their CTAs: of each bundle of heads the longest first; ordered: the first keys.
  std::vector<shared::BackwardItem> items;
  std::vector<shared::QueryRun> runs;
  std::vector<int> ranks;  // ordered: of each run, how many tiles of the same keys' head visit its blocks before
  // The blocks of each sequence, one sequence behind the other. With lengths on the device: room for the most blocks,
  // which each run writes.
  std::vector<shared::RowBlock> blocks;
  std::vector<int> first_blocks;        // of each sequence: number of its first block
  std::int64_t steps = 0, longest = 0;  // of all items, and of the longest
  std::int64_t elements = 0;            // pairs of a query and a key of those steps, those past the ends not counted
};

/// The rows of a tile; its steps are of the other kind.
enum class TileRows : bool { queries, keys };

/// How many heads of keys have their tiles mixed in the list: `heads` of them at a time, and the `last` ones together.
/// With 0 heads, a bundle is what stays in L2, and the last bundle has enough tiles that no long one begins late.
struct Bundles {
  std::int64_t heads = 0, last = 0;
};

/// Tiles of `shape.rows()` rows and steps of `shape.kv_block`, both multiples of 64. A tile of queries has a query head
/// as its kv_head, and its runs have the same one. `block_mask` null: everything attends; else its blocks are multiples
/// of 64 queries and 64 keys.
BackwardSchedule backward_schedule(const problem::AttentionProblem& problem, TileRows of,
                                   const shared::TileShape& shape, bool ordered, const BlockMask* block_mask,
                                   const Bundles& bundles = {});

/// BackwardSchedule::blocks alone.
std::vector<shared::RowBlock> row_blocks(const problem::AttentionProblem& problem);
/// The number of blocks of all sequences; with lengths on the device, of any that there may be.
std::int64_t count_row_blocks(const problem::AttentionProblem& problem);
/// How many items a schedule has.
std::int64_t count_tiles_of(const problem::AttentionProblem& problem, TileRows of, const shared::TileShape& tile);

}  // namespace heddle::plan
