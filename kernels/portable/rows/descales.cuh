// The factors of queries, keys and values of 8 bits. `Params`: a family's, with descales.
#pragma once

#include "portable/rows/descale_of.cuh"
#include "portable/rows/tile_scores.cuh"

namespace heddle::portable {

/// The factors of queries and keys become those of the products of the thread's rows.
template <auto kConfig, class F, class Mods, class Params, int kFragments>
__device__ __forceinline__ void apply_descales(typename F::Queries (&q)[kFragments], const Params& params,
                                               const Tile<kConfig>& tile,
                                               const TileScores<kConfig, F, Mods, Params>& scores, int kv_head) {
  if constexpr (kConfig.converts()) {
    const float of_first = descale_of(params.descales.k, tile.batch, kv_head);
#pragma unroll
    for (int i = 0; i < kFragments * F::kOwnRows; ++i) {
      const int batch = tile.batch_of(scores.row_of(i));
      const float keys = kConfig.prefixed() ? descale_of(params.descales.k, batch, kv_head) : of_first;
      q[i / F::kOwnRows].factor[i % F::kOwnRows] *=
          keys * descale_of(params.descales.q, batch, scores.head_of(tile, i));
    }
  }
}

}  // namespace heddle::portable
