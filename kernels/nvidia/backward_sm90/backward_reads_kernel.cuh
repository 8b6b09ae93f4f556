// The pass of backward_sm90 that sums gradients of captures and params. Its CTAs load and walk as the main kernel's, a
// tile each, and recompute S and dP; backward_sm90/backward_reader.cuh says what becomes of them.
//
// Included last by a generated source, which defines kConfig, score_product(), the mods' functions, the reads,
// kSumTypes and Reader.
#pragma once

#include "backward_sm90/backward_reader.cuh"
#include "backward_sm90/backward_sm90_kernel.cuh"

namespace heddle {

/// By one thread: the record of the CTA's tile. One of another round is none.
template <auto kConfig>
__device__ __forceinline__ void bring_tile(const BackwardMemory<kConfig>& memory,
                                           const shared::BackwardSm90Params& params,
                                           const shared::BackwardReadsParams& reads) {
  constexpr int kNone = 0x7fffffff;
  int tile = static_cast<int>(blockIdx.x);
  if (tile < memory.tile_count(params)) {
    const shared::BackwardItem& item = params.items[tile];
    const bool skipped = item.kv_tile < 0 || (reads.round_batch >= 0 && item.batch != reads.round_batch) ||
                         (reads.round_head >= 0 && item.kv_head != reads.round_head);
    if (skipped) tile = kNone;
  }
  memory.fetch_tile(params, 0, tile);
  ptx::barrier_arrive(memory.tile_full(0));
}

}  // namespace heddle

extern "C" __global__ void __launch_bounds__(heddle::kConfig.threads(), 1)
    backward_reads(const __grid_constant__ heddle::ptx::TensorMap q_map,
                   const __grid_constant__ heddle::ptx::TensorMap k_map,
                   const __grid_constant__ heddle::ptx::TensorMap v_map,
                   const __grid_constant__ heddle::ptx::TensorMap d_o_map,
                   const __grid_constant__ heddle::shared::BackwardSm90Params params,
                   const __grid_constant__ heddle::shared::BackwardReadsParams reads) {
  using namespace heddle;
  extern __shared__ __align__(1024) char dynamic[];
  const BackwardMemory<kConfig> memory(dynamic);
  const BackwardMaps maps = {q_map, k_map, v_map, d_o_map};
  if (threadIdx.x == 0) memory.initialise();
  zero_missing_panels<kConfig>(memory);
  __syncthreads();
  const int warpgroup = __shfl_sync(~0U, threadIdx.x / 128, 0);
  if (warpgroup == 0) {
    ptx::give_registers<shared::kProducerRegisters>();
    if (threadIdx.x == 0) BackwardProducer<kConfig>(memory, maps, params).run();
    if (threadIdx.x == 32) bring_tile<kConfig>(memory, params, reads);
  } else {
    ptx::take_registers<kConfig.consumer_registers()>();
    Reader(memory, params, reads, warpgroup - 1).run();
  }
}
