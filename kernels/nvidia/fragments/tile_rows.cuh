// A consumer's rows in their tile: 64 queries of one head a warpgroup, or, packed, n queries of each of several heads,
// one head after the other. Either way a warp's 16 rows are of one head, and the tile's queries in a row.
#pragma once

namespace heddle {

/// The query of a warp's first row, counted from the tile's first one.
template <auto kConfig>
__device__ __forceinline__ int query_of_warp(int warpgroup) {
  const int warp = (threadIdx.x >> 5) & 3;
  if constexpr (kConfig.packs()) return 16 * warp % kConfig.queries();
  return 64 * warpgroup + 16 * warp;
}

/// Query of the thread's first row; its other row is 8 further down.
template <auto kConfig>
__device__ __forceinline__ int query_of_thread(int warpgroup) {
  return query_of_warp<kConfig>(warpgroup) + static_cast<int>((threadIdx.x & 31) >> 2);
}

/// The head of a warp's rows, counted from the tile's first one.
template <auto kConfig>
__device__ __forceinline__ int head_of_warp(int warpgroup) {
  if constexpr (!kConfig.packs()) return 0;
  const int warp = (threadIdx.x >> 5) & 3;
  return warpgroup * kConfig.warpgroup_heads() + 16 * warp / kConfig.queries();
}

}  // namespace heddle
