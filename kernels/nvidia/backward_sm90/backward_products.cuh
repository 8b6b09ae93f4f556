// The five products of a warpgroup and a step of the backward, by the generated score_product(), gradient_product() and
// query_product(). Each is left in flight, a group of its own. Tensors stand in panels of 64 columns.
#pragma once

#include "ptx/wgmma.cuh"
#include "families/backward_sm90/shared/backward_sm90_config.h"
#include "shared/panels.h"

namespace heddle {

/// Size of a panel of `rows` rows, in units of 16 bytes.
constexpr unsigned panel_units(int rows) { return static_cast<unsigned>(rows) * 128 / 16; }

/// S^T = K Q^T, or dP^T = V dO^T: 64 keys x 64 queries. `keys`: the warpgroup's first row in panels of all keys.
template <auto kConfig>
__device__ __forceinline__ void issue_scores(float (&s)[32], ptx::Address keys, ptx::Address queries) {
  const unsigned a = keys >> 4, b = queries >> 4;
  ptx::wgmma_fence();
#pragma unroll
  for (int i = 0; i < kConfig.columns / 16; ++i) {
    const unsigned columns = (i % 4) * ptx::kNextColumns;
    score_product(s, ptx::descriptor(a + (i / 4) * panel_units(kConfig.keys()) + columns),
                  ptx::descriptor(b + (i / 4) * panel_units(shared::kStepQueries) + columns), i > 0);
  }
  ptx::wgmma_commit();
}

/// dV += P^T dO, or dK += dS^T Q: 64 keys x all columns; without `accumulate` the sum begins. `p`: sixteen queries in
/// four registers.
template <auto kConfig>
__device__ __forceinline__ void issue_gradient(float (&d)[kConfig.columns / 2], unsigned (&p)[16], ptx::Address queries,
                                               int accumulate) {
  const unsigned b = (queries >> 4) | panel_units(shared::kStepQueries) << 16;
  ptx::wgmma_fence();
#pragma unroll
  for (int i = 0; i < 4; ++i)
    gradient_product(d, &p[4 * i], ptx::descriptor(b + i * ptx::kNextRows), i > 0 ? 1 : accumulate);
  ptx::wgmma_commit();
}

/// A part of dQ = dS K: 64 queries x d_q_columns() columns. `d_s`: panels of 64 keys; `keys`: the part's columns.
template <auto kConfig>
__device__ __forceinline__ void issue_queries(float (&d)[kConfig.d_q_columns() / 2], ptx::Address d_s,
                                              ptx::Address keys) {
  const unsigned a = d_s >> 4, b = (keys >> 4) | panel_units(kConfig.keys()) << 16;
  ptx::wgmma_fence();
#pragma unroll
  for (int i = 0; i < 4 * kConfig.warpgroups; ++i) {
    const unsigned columns = (i % 4) * ptx::kNextColumns;
    query_product(d, ptx::descriptor(a + (i / 4) * panel_units(shared::kStepQueries) + columns),
                  ptx::descriptor(b + i * ptx::kNextRows), i > 0);
  }
  ptx::wgmma_commit();
}

}  // namespace heddle
