// Packed heads: if queries are few, query heads that read the same keys share a tile
// (docs/notes/hopper_packed_heads.md). Their keys and values are then read once, and the rows of the tile that one head
// would leave empty belong to the other heads.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "heddle/block_mask.h"
#include "problem/problem.h"
#include "shared/tile_shape.h"

namespace heddle::plan {

/// Packed kernels are compared with the others: several query heads read the same keys, and no sequence has more
/// queries than a warpgroup has rows, or all together fill less than half of the rows that their warpgroups compute.
bool has_few_queries(const problem::AttentionProblem& problem);

/// How many queries of a head a packed tile may have, fewest first. A size is skipped if one warpgroup holds the whole
/// group at twice that size.
std::vector<int> packed_queries(const problem::AttentionProblem& problem);

/// Tiles for the query heads of one kv head: one a head, or fewer where tiles are packed.
std::int64_t head_tiles(const problem::AttentionProblem& problem, const shared::TileShape& tile);

/// Merges rows of key blocks: a block is full if it is full in all rows; else it is partial, and the mask decides.
std::vector<Run> merged_runs(std::span<const std::span<const Run>> rows);

/// "16 queries of 8 heads"
std::string describe_packed(const shared::TileShape& tile);

}  // namespace heddle::plan
