// The backward on Hopper with head dims above 128: dk and dv of a tile of keys, and its share of dq, by the five
// products of backward_sm90/backward_sm90_kernel.cuh.
//
// A pair of CTAs (a cluster) computes a tile, 64 keys each. One warpgroup of a CTA has S and dV, one dP and dK, so
// neither accumulator is shared and no product is computed twice; the third has dQ. dS goes to the other CTA, and each
// computes half of dQ's columns over the keys of both: so dQ's sums, which L2 adds, are half of what 64 keys would
// give. Threads of the producer warpgroup load, send dS and add dQ (backward_sm90/backward_wide_producer.cuh).
//
// Included last by a generated source, which defines kConfig, score_product(), gradient_product(), query_product() and
// the mods' functions.
#pragma once

#include "backward_sm90/backward_wide_gradients.cuh"
#include "backward_sm90/backward_wide_producer.cuh"
#include "backward_sm90/backward_wide_queries.cuh"
#include "backward_sm90/backward_wide_scores.cuh"
#include "backward_sm90/wide_memory.cuh"
#include "families/backward_sm90/shared/backward_sm90_params.h"

extern "C" __global__ void __cluster_dims__(heddle::shared::kPair, 1, 1) __launch_bounds__(heddle::kConfig.threads(), 1)
    backward_sm90(const __grid_constant__ heddle::ptx::TensorMap q_map,
                  const __grid_constant__ heddle::ptx::TensorMap k_map,
                  const __grid_constant__ heddle::ptx::TensorMap v_map,
                  const __grid_constant__ heddle::ptx::TensorMap d_o_map,
                  const __grid_constant__ heddle::shared::BackwardSm90Params params) {
  using namespace heddle;
  extern __shared__ __align__(1024) char dynamic[];
  const WideMemory<kConfig> memory(dynamic);
  const int rank = ptx::cluster_rank();
  const BackwardMaps maps = {q_map, k_map, v_map, d_o_map};
  if (threadIdx.x == 0) {
    maps.prefetch();
    memory.initialise();
    memory.fetch_tile(params, static_cast<int>(blockIdx.x) / shared::kPair);
  }
  ptx::cluster_barrier();
  const int warpgroup = __shfl_sync(~0U, threadIdx.x / 128, 0);
  if (warpgroup == 0) {
    ptx::give_registers<shared::kProducerRegisters>();
    if (threadIdx.x == 0) WideProducer<kConfig>(memory, maps, params, rank).run();
    if constexpr (kConfig.d_q) {
      if (threadIdx.x == 32) send_d_s<kConfig>(memory, rank);
      const int adder = static_cast<int>(threadIdx.x / 32) - 2;
      if (!kConfig.d_q_added && threadIdx.x % 32 == 0 && adder >= 0) {
        add_pieces<kConfig>(memory, params, rank, adder);
      }
    }
  } else if (warpgroup == 1) {
    ptx::take_registers<shared::kOneOfFourRegisters>();
    WideScores<kConfig>(memory, params, rank).run();
  } else if (warpgroup == 2) {
    ptx::take_registers<shared::kOneOfFourRegisters>();
    WideGradients<kConfig>(memory, params, rank).run();
  } else {
    ptx::give_registers<shared::kQueryRegisters>();
    if constexpr (kConfig.d_q) WideQueries<kConfig>(memory, params, rank).run();
  }
  ptx::cluster_barrier();  // none leaves before the other has done with its shared memory
}
