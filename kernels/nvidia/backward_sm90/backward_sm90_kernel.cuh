// The backward on Hopper: dk and dv of a tile of keys, and its share of dq. One pass of five products, keys stationary:
//
//   S^T = K Q^T    dP^T = V dO^T    dV += P^T dO    dK += dS^T Q    dQ += dS K
//
// A CTA computes tiles of keys of one head, one after the other, and walks the queries of all query heads that read the
// tile, 64 a step. One thread loads (backward_sm90/backward_producer.cuh); each consumer warpgroup
// (backward_sm90/backward_consumer.cuh) owns 64 keys, whose dK and dV stay in its registers; a thread for each of them
// adds finished parts of dQ to memory, in f32, in no order, or in that of the keys (ordered): then a part's turn passes
// from tile to tile. Kernels before and behind this one (backward_sm90/backward_rows_kernels.cuh) give each row its lse
// and delta, zero those sums, and make dq of them.
//
// Included last by a generated source, which defines kConfig, score_product(), gradient_product(), query_product() and
// the mods' functions.
#pragma once

#include "backward_sm90/backward_consumer.cuh"
#include "backward_sm90/backward_memory.cuh"
#include "backward_sm90/backward_producer.cuh"
#include "families/backward_sm90/shared/backward_sm90_params.h"

namespace heddle {

/// Where the tensors have fewer panels than the products, the rest is zeros.
template <auto kConfig>
__device__ __forceinline__ void zero_missing_panels(const BackwardMemory<kConfig>& memory) {
  if constexpr (kConfig.qk_panels() < kConfig.panels() || kConfig.v_panels() < kConfig.panels()) {
    for (int at = 16 * static_cast<int>(threadIdx.x); at < BackwardMemory<kConfig>::kLayout.d_s;
         at += 16 * kConfig.threads()) {
      ptx::store_zeros(memory.base + at);
    }
    ptx::fence_for_tma();
  }
}

}  // namespace heddle

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
  zero_missing_panels<kConfig>(memory);
  __syncthreads();
  const int warpgroup = __shfl_sync(~0U, threadIdx.x / 128, 0);
  if (warpgroup == 0) {
    run_producers<kConfig>(memory, maps, params);
  } else {
    ptx::take_registers<kConfig.consumer_registers()>();
    BackwardConsumer<kConfig>(memory, params, warpgroup - 1).run();
  }
}
