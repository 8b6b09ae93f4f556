// The five products of a pair's CTA and a step, by the generated score_product(), gradient_product() and
// query_product(). Each is left in flight, a group of its own. Tensors stand in panels of 64 columns and 64 rows.
#pragma once

#include "ptx/wgmma.cuh"
#include "families/backward_sm90/shared/backward_wide_memory.h"

namespace heddle {

inline constexpr unsigned kWidePanelUnits = shared::kWidePanelBytes / 16;
/// A descriptor's distance of panels, where columns are the product's columns.
inline constexpr unsigned kWidePanelDistance = kWidePanelUnits << 16;

/// S^T = K Q^T, or dP^T = V dO^T: 64 keys x 64 queries, summed over kDim columns. kAdds: to what s has.
template <int kDim, bool kAdds = false>
__device__ __forceinline__ void issue_wide_scores(float (&s)[32], ptx::Address keys, ptx::Address queries) {
  const unsigned a = ptx::matrix_at(keys), b = ptx::matrix_at(queries);
  ptx::wgmma_fence();
#pragma unroll
  for (int i = 0; i < (kDim + 15) / 16; ++i) {
    const unsigned columns = (i / 4) * kWidePanelUnits + (i % 4) * ptx::kNextColumns;
    score_product(s, ptx::descriptor(a + columns), ptx::descriptor(b + columns), kAdds || i > 0);
  }
  ptx::wgmma_commit();
}

/// Registers of kPanels panels of an accumulator, from panel kFirst on.
template <int kFirst, int kPanels, int kCount>
__device__ __forceinline__ auto& panels_of(float (&d)[kCount]) {
  static_assert(32 * (kFirst + kPanels) <= kCount);
  return *reinterpret_cast<float(*)[32 * kPanels]>(&d[32 * kFirst]);
}

/// dV += P^T dO, or dK += dS^T Q: 64 keys x all columns; without `accumulate` the sum begins. `p`: sixteen queries in
/// four registers. A product has two panels, or one: the compiler takes none that does not fit into the registers of a
/// thread before warpgroups have traded theirs (C7602).
template <int kCount>
__device__ __forceinline__ void issue_wide_gradient(float (&d)[kCount], unsigned (&p)[16], ptx::Address queries,
                                                    int accumulate) {
  constexpr int kPanels = kCount / 32;
  const unsigned b = ptx::matrix_at(queries) | kWidePanelDistance;
  ptx::wgmma_fence();
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const unsigned rows = b + i * ptx::kNextRows;
    const int adds = i > 0 ? 1 : accumulate;
    if constexpr (kPanels > 1) gradient_product(panels_of<0, 2>(d), &p[4 * i], ptx::descriptor(rows), adds);
    if constexpr (kPanels > 3) {
      gradient_product(panels_of<2, 2>(d), &p[4 * i], ptx::descriptor(rows + 2 * kWidePanelUnits), adds);
    } else if constexpr (kPanels % 2 == 1) {
      gradient_product(panels_of<kPanels - 1, 1>(d), &p[4 * i], ptx::descriptor(rows + (kPanels - 1) * kWidePanelUnits),
                       adds);
    }
  }
  ptx::wgmma_commit();
}

/// dV += P^T dO for panels kFirst and kFirst + 1 of dV alone. `queries`: these panels of dO.
template <int kFirst, int kCount>
__device__ __forceinline__ void issue_two_panels(float (&d)[kCount], unsigned (&p)[16], ptx::Address queries,
                                                 int accumulate) {
  const unsigned b = ptx::matrix_at(queries) | kWidePanelDistance;
  ptx::wgmma_fence();
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    gradient_product(panels_of<kFirst, 2>(d), &p[4 * i], ptx::descriptor(b + i * ptx::kNextRows),
                     i > 0 ? 1 : accumulate);
  }
  ptx::wgmma_commit();
}

/// A panel of dQ = dS K: 64 queries x 64 columns, over 64 keys of either CTA. `d_s`, `keys`: this CTA's and the
/// other's.
__device__ __forceinline__ void issue_wide_queries(float (&d)[32], const ptx::Address (&d_s)[2],
                                                   const ptx::Address (&keys)[2]) {
  ptx::wgmma_fence();
#pragma unroll
  for (int side = 0; side < 2; ++side) {
    const unsigned a = ptx::matrix_at(d_s[side]), b = ptx::matrix_at(keys[side]);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      query_product(d, ptx::descriptor(a + i * ptx::kNextColumns), ptx::descriptor(b + i * ptx::kNextRows),
                    side + i > 0);
    }
  }
  ptx::wgmma_commit();
}

}  // namespace heddle
