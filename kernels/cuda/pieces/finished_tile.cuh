// The end of a tile's rows in a consumer: what their sums make of O, lse, whether the tile has to come again, and o.
#pragma once

#include "pieces/output.cuh"
#include "pieces/scores.cuh"
#include "pieces/sink.cuh"
#include "pieces/tile_reads.cuh"
#include "ptx/math.cuh"

namespace heddle {

/// From this sum of weights on, large values may have overflowed O though the sum itself has not; a weight_mod may make
/// any of them large.
constexpr float kSuspicious = 16777216.0F;

/// Numbers that are finite, times 0, sum to 0.
template <int kCount>
__device__ __forceinline__ bool is_finite(const float (&o)[kCount]) {
  float zero = 0;
#pragma unroll
  for (int i = 0; i < kCount; ++i) zero = fmaf(o[i], 0.0F, zero);
  return zero == 0;
}

/// The producer will bring that tile again, safely: its flag is set.
__device__ __forceinline__ void bring_again(ptx::Address redo) {
  // Predicated, not a branch: lanes that part here would cost every address of the loop its one value a warp.
  asm volatile(
      "{\n"
      ".reg .pred first;\n"
      "setp.eq.u32 first, %2, 0;\n"
      "@first red.shared.or.b32 [%0], %1;\n"
      "}" ::"r"(redo),
      "r"(1), "r"(threadIdx.x & 31)
      : "memory");
}

/// Of the four threads that share the two rows, the first two store one each: the even ones the upper row's.
template <ForwardSm90Config kConfig>
__device__ __forceinline__ void store_own_lse(const TileReads<kConfig>& tiles, const TilePlace& at,
                                              const TileSequence& own, float lse) {
  const int own_row = at.q_first + query_of_thread<kConfig>(tiles.warpgroup) + (threadIdx.x & 1 ? 8 : 0);
  if ((threadIdx.x & 2) == 0 && own_row < own.q_len) store_lse(tiles.params, at, own.q_begin + own_row, lse);
}

/// 1 / l, and lse = m + ln l. Returns whether the weights were so large that O may not be finite.
template <ForwardSm90Config kConfig, class RowSoftmax>
__device__ __forceinline__ bool close_softmax(const TileReads<kConfig>& tiles, unsigned tile, const RowSoftmax& softmax,
                                              float (&factor)[2]) {
  const float l[2] = {ptx::row_sum(softmax.rows.l[0]), ptx::row_sum(softmax.rows.l[1])};
  factor[0] = l[0] > 0 ? ptx::reciprocal(l[0]) : l[0];  // NaN stays
  factor[1] = l[1] > 0 ? ptx::reciprocal(l[1]) : l[1];
  const TilePlace at = tiles.own_place(tile);
  const bool suspect =
      !softmax.safe && (kConfig.weighted || __any_sync(~0U, !((l[0] < kSuspicious) & (l[1] < kSuspicious))));
  if constexpr (kConfig.sinks) {
    const float sink = load_shared(tiles.memory.sink(tile) + 4 * head_of_warp<kConfig>(tiles.warpgroup));
    const RowEnd ends[2] = {end_with_sink(softmax.rows.m[0], l[0], sink), end_with_sink(softmax.rows.m[1], l[1], sink)};
    const float largest[2] = {ends[0].sunk ? kSuspicious : RowSoftmax::kLargestSum,
                              ends[1].sunk ? kSuspicious : RowSoftmax::kLargestSum};
    if (suspect && __any_sync(~0U, !((l[0] < largest[0]) & (l[1] < largest[1])))) bring_again(tiles.memory.redo(tile));
    factor[0] = ends[0].factor;
    factor[1] = ends[1].factor;
    if constexpr (kConfig.lse) {
      store_own_lse(tiles, at, tiles.own_sequence(tile), threadIdx.x & 1 ? ends[1].lse : ends[0].lse);
    }
  } else {
    constexpr float kLargest = RowSoftmax::kLargestSum;
    if (suspect && __any_sync(~0U, !((l[0] < kLargest) & (l[1] < kLargest)))) bring_again(tiles.memory.redo(tile));
    if constexpr (kConfig.lse) {
      // Where nothing attends m is -inf.
      const bool lower = threadIdx.x & 1;
      const float lse =
          ptx::kLn2 * ((lower ? softmax.rows.m[1] : softmax.rows.m[0]) + ptx::log2_fast(lower ? l[1] : l[0]));
      store_own_lse(tiles, at, tiles.own_sequence(tile), lse);
    }
  }
  return suspect;
}

/// o = O / l. `suspect`: as its rows were closed; O is to be looked at.
template <ForwardSm90Config kConfig>
__device__ __forceinline__ void store_tile(const TileReads<kConfig>& tiles, const ptx::TensorMap& o_map, unsigned tile,
                                           bool suspect, const float (&o)[kConfig.v_columns() / 2],
                                           const float (&factor)[2]) {
  const TilePlace at = tiles.own_place(tile);
  if (suspect && !__all_sync(~0U, is_finite(o))) bring_again(tiles.memory.redo(tile));
  // Pairs take fewer registers than elements: products of 8 bits leave none.
  constexpr bool kPairs = kConfig.o_type != OutputType::same || kConfig.fp8();
  if constexpr (kPairs && kConfig.stores_o_by_threads()) {
    store_converted_output<kConfig>(tiles.params, tiles.warpgroup, at, tiles.own_sequence(tile), o, factor);
  } else if constexpr (kConfig.stores_o_by_threads()) {
    store_odd_output<kConfig>(tiles.params, tiles.warpgroup, at, tiles.own_sequence(tile), o, factor);
  } else {
    store_output<kConfig>(tiles.memory, o_map, tiles.warpgroup, at, tiles.own_sequence(tile), tiles.params.q_len, o,
                          factor);
  }
}

}  // namespace heddle
