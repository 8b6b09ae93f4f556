// Rows that no tile computes, by all CTAs of a launch.
#pragma once

#include "families/forward_mma/shared/forward_mma_params.h"
#include "portable/rows/tile_output.cuh"

namespace heddle::portable {

using shared::ForwardMmaParams;

/// Lengths on the device, by all CTAs: the rows that each sequence has (`of_sequence`), or those that none has.
template <auto kConfig, class F>
__device__ __forceinline__ void store_fills_by_sequence(const ForwardMmaParams& params, int cta, int ctas,
                                                        bool of_sequence) {
  constexpr int kRows = 64;  // of a part
  const shared::ListedTiles& listed = params.listed;
  for (int batch = 0; batch < listed.sequence_count; ++batch) {
    const shared::SequenceSpan* span = params.mod.sequences + batch;
    const int begin = of_sequence ? span->q_begin : span->q_begin + span->q_len;
    const int rows = of_sequence ? span->q_len : (listed.packed ? span[1].q_begin : listed.q_rows) - begin;
    const int parts = (rows + kRows - 1) / kRows;
    for (int i = cta; i < parts * listed.q_heads; i += ctas) {
      const int part = i % parts * kRows, left = rows - part;
      store_fill<kConfig, F>(params, {begin + part, left < kRows ? left : kRows, i / parts, batch}, of_sequence);
    }
  }
}

/// By all CTAs: the rows that the list of fills names, or that the lengths on the device leave to no tile.
template <auto kConfig, class F>
__device__ __forceinline__ void store_fills(const ForwardMmaParams& params, int cta, int ctas) {
  if constexpr (kConfig.device_lengths) {
    store_fills_by_sequence<kConfig, F>(params, cta, ctas, false);
    // Without keys the list has no tiles.
    if (params.mod.kv_len == 0) store_fills_by_sequence<kConfig, F>(params, cta, ctas, true);
  } else {
    for (int i = cta; i < params.fills.count; i += ctas) {
      store_fill<kConfig, F>(params, params.fills.fills[i], i < params.fills.unattending);
    }
  }
}

}  // namespace heddle::portable
