// The forward pass on Hopper: o = softmax(mod(scale q k^T)) v, or with another normalizer than softmax.
//
// One CTA an SM, for the whole launch. Its tile source (forward_sm90/tile_source.cuh) draws one tile after the other;
// its producer (forward_sm90/producer.cuh) streams their key and value blocks; each consumer warpgroup
// (forward_sm90/consumer.cuh) owns 64 query rows, of one head or, where queries are few, packed from several heads that
// read the same keys (fragments/tile_rows.cuh). The loop is one, over all blocks of all tiles: while a warpgroup does
// the softmax of block j, the tensor cores run Q K^T of block j + 1 for another warpgroup and P V of block j - 1 for
// its own, also where one tile ends and the next begins. Before a block that none of its rows attends a warpgroup ends
// its stretch, and passes over it. If storage has 8 bits, warps transpose the values (forward_sm90/transposer.cuh).
//
// Included last by a generated source, which defines kConfig, qk_product(), pv_product() and the mods' functions.
#pragma once

#include "families/forward_sm90/shared/forward_sm90_params.h"
#include "forward_sm90/consumer.cuh"
#include "forward_sm90/gather.cuh"
#include "forward_sm90/key_numbers.cuh"
#include "forward_sm90/memory.cuh"
#include "forward_sm90/producer.cuh"
#include "forward_sm90/streamer.cuh"
#include "forward_sm90/transposer.cuh"
#include "fragments/empty_rows.cuh"
#include "ptx/wgmma.cuh"

extern "C" __global__ void __launch_bounds__(heddle::kConfig.threads(), 1)
    forward_sm90(const __grid_constant__ heddle::ptx::TensorMap q_map,
                 const __grid_constant__ heddle::ptx::TensorMap k_map,
                 const __grid_constant__ heddle::ptx::TensorMap v_map,
                 const __grid_constant__ heddle::ptx::TensorMap o_map,
                 const __grid_constant__ heddle::shared::ForwardSm90Params params,
                 const __grid_constant__ heddle::ptx::TensorMap streamed_map,
                 const __grid_constant__ heddle::ptx::TensorMap streamed_rest_map) {
  using namespace heddle;
  using Params = shared::ForwardSm90Params;
  extern __shared__ __align__(1024) char dynamic[];
  const SharedMemory<kConfig> memory(dynamic);
  if (threadIdx.x == 0) {
    if (params.tiles.item_count > 0) {
      ptx::prefetch_map(q_map);
      if constexpr (!kConfig.gathers()) {
        ptx::prefetch_map(k_map);
        ptx::prefetch_map(v_map);
      }
    }
    memory.initialise();
  }
  if (threadIdx.x == 32) TileSource<kConfig, Params>::fetch_own(memory, params);
  __syncthreads();
  const int warpgroup = __shfl_sync(~0U, threadIdx.x / 128, 0);
  if (warpgroup == 0) {
    ptx::give_registers<kConfig.producer_registers()>();
    if constexpr (kConfig.fp8()) {
      constexpr unsigned kFirst = 2;  // of the warpgroup's warps; those before have the producer and the tile source
      constexpr unsigned kEnd = kFirst + kConfig.transposers();
      const unsigned warp = __shfl_sync(~0U, threadIdx.x / 32, 0);
      if (warp >= kFirst && warp < kEnd) Transposer<kConfig>(memory, warp - kFirst).run();
    }
    if (threadIdx.x == 0) Producer<kConfig, Params>(memory, q_map, k_map, v_map, params).run();
    if (threadIdx.x == 32) TileSource<kConfig, Params>(memory, params).run();
    if constexpr (kConfig.streamed_bytes > 0) {
      if (threadIdx.x == 64) Streamer<kConfig>(memory, streamed_map, streamed_rest_map, params.mod).run();
    }
    if constexpr (kConfig.computes_keys()) {
      constexpr unsigned kFirst = kConfig.first_key_warp(), kEnd = kFirst + kConfig.key_warps();
      const unsigned warp = __shfl_sync(~0U, threadIdx.x / 32, 0);
      if (warp >= kFirst && warp < kEnd)
        KeyNumbers<kConfig>(memory, params.mod, params.scale_log2, params.scale, warp - kFirst).run();
    }
    if constexpr (kConfig.orders()) {
      if (threadIdx.x >= 128 - 32 * kConfig.gather_warps()) Gatherer<kConfig>(memory, k_map, v_map, params.pages).run();
    }
  } else {
    ptx::take_registers<kConfig.consumer_registers()>();
    Consumer<kConfig, Params>(memory, o_map, params, warpgroup - 1).run();
    store_fills<kConfig>(params);
  }
}
