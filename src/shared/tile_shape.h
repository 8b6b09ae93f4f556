// The shape of a tile of scores. The walk over a mask's rows, the list of tiles and their order need to know no more of
// a kernel. The planner, and kernels through their configurations, read this file: no headers, plain integers only.
#pragma once

namespace heddle::shared {

inline constexpr int kWarpgroupRows = 64;  // rows of scores of a consumer warpgroup

struct TileShape {
  int warpgroups;  // of unit_rows rows each
  int kv_block;    // keys of a step
  // 16, 32 or 64: packed. A tile has this many queries of each of several query heads that read the same keys, head
  // after head, so the 16 rows of a warp belong to one head. 0: all rows belong to one head.
  int packed_queries = 0;
  bool descending = false;   // the key blocks are walked from the last to the first
  bool stores_mask = false;  // the mask's bits are stored for each tile, so that tiles share no row of key blocks

  int unit_rows = kWarpgroupRows;  // fewer: the tile has one warpgroup of so many, and all are one head's

  constexpr int rows() const { return unit_rows * warpgroups; }
  constexpr bool packs() const { return packed_queries > 0; }
  /// Queries of each of the tile's heads.
  constexpr int queries() const { return packs() ? packed_queries : rows(); }
  /// Queries of each of a warpgroup's heads.
  constexpr int warpgroup_queries() const { return packs() ? packed_queries : unit_rows; }
  constexpr int warpgroup_heads() const { return packs() ? kWarpgroupRows / packed_queries : 1; }
  constexpr int heads() const { return packs() ? warpgroups * warpgroup_heads() : 1; }
};

}  // namespace heddle::shared
