// The backward on Hopper with head dims to 64, its five products those of backward_sm90/backward_sm90_kernel.cuh: dQ
// has a warpgroup of its own. So the two that own keys wait less, and read less of shared memory
// (backward_sm90/backward_holder.cuh); dQ's product is whole, and its stores delay no other product
// (backward_sm90/backward_queries.cuh). A CTA has two tiles' K and V, and draws tiles.
//
// Included last by a generated source, which defines kConfig, score_product(), held_score_product(),
// gradient_product(), query_product() and the mods' functions.
#pragma once

#include "backward_sm90/backward_holder.cuh"
#include "backward_sm90/backward_memory.cuh"
#include "backward_sm90/backward_producer.cuh"
#include "backward_sm90/backward_queries.cuh"
#include "families/backward_sm90/shared/backward_sm90_params.h"

extern "C" __global__ void __launch_bounds__(heddle::kConfig.threads(), 1)
    backward_sm90(const __grid_constant__ heddle::ptx::TensorMap q_map,
                  const __grid_constant__ heddle::ptx::TensorMap k_map,
                  const __grid_constant__ heddle::ptx::TensorMap v_map,
                  const __grid_constant__ heddle::ptx::TensorMap d_o_map,
                  const __grid_constant__ heddle::shared::BackwardSm90Params params) {
  using namespace heddle;
  extern __shared__ __align__(1024) char dynamic[];
  const BackwardMemory<kConfig> memory(dynamic);
  const BackwardMaps maps = {q_map, k_map, v_map, d_o_map};
  if (threadIdx.x == 0) {
    maps.prefetch();
    memory.initialise();
  }
  __syncthreads();
  const int warpgroup = __shfl_sync(~0U, threadIdx.x / 128, 0);
  if (warpgroup == 0) {
    run_producers<kConfig>(memory, maps, params);
  } else if (warpgroup <= kConfig.warpgroups) {
    ptx::take_registers<kConfig.consumer_registers()>();
    BackwardHolder<kConfig>(memory, params, warpgroup - 1).run();
  } else {
    ptx::give_registers<shared::kQueryRegisters>();
    BackwardQueries<kConfig>(memory, params).run();
  }
}
