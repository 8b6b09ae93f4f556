// A row's way out, when the sums of all of its keys are known.
#pragma once

#include "families/decode_mma/shared/decode_mma_params.h"
#include "portable/rows/descale_of.cuh"
#include "portable/rows/tile.cuh"
#include "portable/rows/tile_output.cuh"

namespace heddle::portable {

/// Stores sums of a tile's row from `column` on; row 0 of `merged` has its maximum and its sum. `of_values`: the factor
/// of values of 8 bits, unless rows are of several sequences.
template <auto kConfig, class F, int kRun>
__device__ __forceinline__ void end_row(const shared::DecodeMmaParams& params, const Tile<kConfig>& tile, int row,
                                        int column, const float (&sums)[kRun], const RowWeights<kConfig, F>& merged,
                                        float of_values = 1) {
  const int batch = tile.batch_of(row), head = tile.head_of(row), at = tile.q_begin_of(row) + tile.query_of(row);
  RowEnd<float> row_end = merged.close(0, params.sinks, head);
  if constexpr (kConfig.converts()) {
    row_end.factor *= kConfig.prefixed() ? descale_of(params.descales.v, batch, tile.kv_head) : of_values;
  }
  store_run<kConfig, F>(params, batch, head, at, column, row_end.factor, sums);
  if (column == 0) store_row_numbers<kConfig, float>(params, batch, head, at, row_end);
}

}  // namespace heddle::portable
