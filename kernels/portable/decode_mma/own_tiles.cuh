// The tiles of a CTA: one of each sequence on the line, with queries of the same heads everywhere.
#pragma once

#include "families/decode_mma/shared/decode_mma_params.h"
#include "portable/decode_mma/line.cuh"
#include "portable/decode_mma/prefixes.cuh"
#include "portable/rows/tile.cuh"

namespace heddle::portable {

template <auto kConfig>
class OwnTiles {
 public:
  /// Tile number `number` of each sequence.
  __device__ __forceinline__ OwnTiles(const shared::DecodeMmaParams& params, int number)
      : params_(params),
        number_(number),
        kv_head_(params.tiles_of_kv_head == 1 ? number : number / params.tiles_of_kv_head),
        head_(kv_head_ * params.group + own() / query_tiles() * kConfig.packed_heads) {}

  __device__ __forceinline__ int number() const { return number_; }
  __device__ __forceinline__ int kv_head() const { return kv_head_; }
  /// The tile's first query.
  __device__ __forceinline__ int q_first() const {
    return kConfig.tile_queries > 0 ? own() % query_tiles() * kConfig.tile_queries : 0;
  }
  /// Else the sequence has fewer queries than others, and none of the tile's.
  __device__ __forceinline__ static bool has_queries(const Tile<kConfig>& tile) {
    return kConfig.tile_queries == 0 || tile.q_first == 0 || tile.q_first < tile.q_len;
  }

  __device__ __forceinline__ Tile<kConfig> at(const LinePlace<kConfig>& place) const {
    Tile<kConfig> tile(place.batch, head_, kv_head_, q_first(), params_.group, params_.mod);
    if constexpr (kConfig.by_sequence) tile.stand_at(place.span);
    if constexpr (kConfig.listed_pages) tile.first_entry = place.first_entry;
    if constexpr (kConfig.prefixed()) {
      tile.near = &near_sequences<kConfig>();
      tile.is_shared = place.is_shared;
      if (place.is_shared) tile.kv_len = place.shared_keys;
    }
    return tile;
  }

 private:
  /// The tile among those that read the same keys.
  __device__ __forceinline__ int own() const { return number_ - kv_head_ * params_.tiles_of_kv_head; }
  __device__ __forceinline__ int query_tiles() const { return kConfig.tile_queries > 0 ? params_.query_tiles : 1; }

  const shared::DecodeMmaParams& params_;
  int number_, kv_head_, head_;  // of each sequence; the first query head
};

}  // namespace heddle::portable
