// The shape of a tile of scores: all that the walk over a mask's rows, the list of tiles and their order need to know
// of a kernel. Read by the planner, and by kernels through their configurations: no headers, plain integers only.
#pragma once

namespace heddle::shared {

inline constexpr int kWarpgroupRows = 64;  // rows of scores of a consumer warpgroup

struct TileShape {
  int warpgroups;  // of kWarpgroupRows rows each
  int kv_block;    // keys of a step
  // Packed: a tile has so many queries (16, 32 or 64) of each of several query heads, which read the same keys. Its
  // rows are head after head, so that a warp's 16 are of one. 0: all rows are one head's.
  int packed_queries = 0;
  bool descending = false;   // the key blocks are walked from the last to the first
  bool stores_mask = false;  // the mask's bits are stored for each tile, so that tiles share no row of key blocks

  constexpr int rows() const { return kWarpgroupRows * warpgroups; }
  constexpr bool packs() const { return packed_queries > 0; }
  /// Queries of each of the tile's heads.
  constexpr int queries() const { return packs() ? packed_queries : rows(); }
  /// Queries of each of a warpgroup's heads.
  constexpr int warpgroup_queries() const { return packs() ? packed_queries : kWarpgroupRows; }
  constexpr int warpgroup_heads() const { return packs() ? kWarpgroupRows / packed_queries : 1; }
  constexpr int heads() const { return packs() ? warpgroups * warpgroup_heads() : 1; }
};

}  // namespace heddle::shared
