// The two products of a warpgroup and a block, by the generated qk_product() and pv_product().
#pragma once

#include "ptx/barrier.cuh"
#include "ptx/wgmma.cuh"
#include "shared/transposed_values.h"

namespace heddle {

/// S = Q K^T, in flight. `q`: where the queries are, in units of 16 bytes.
template <auto kConfig>
__device__ __forceinline__ void issue_qk(float (&s)[kConfig.kv_block / 2], unsigned q, ptx::Address keys) {
  constexpr int kN = kConfig.kv_block;
  const unsigned k = keys >> 4;
  ptx::wgmma_fence();
#pragma unroll
  for (int i = 0; i < kConfig.qk_columns() / kConfig.product_step(); ++i) {
    const unsigned columns = (i % 4) * ptx::kNextColumns;
    qk_product(s, ptx::descriptor(q + (i / 4) * (64 * 128 / 16) + columns),
               ptx::descriptor(k + (i / 4) * (kN * 128 / 16) + columns), i > 0);
  }
  ptx::wgmma_commit();
}

/// O = P V, or O += P V, in flight.
template <auto kConfig>
__device__ __forceinline__ void issue_pv(float (&o)[kConfig.v_columns() / 2],
                                         unsigned (&p)[kConfig.kv_block * kConfig.element_bytes() / 8],
                                         ptx::Address values, int accumulate) {
  constexpr int kN = kConfig.kv_block;
  if constexpr (kConfig.fp8()) {
    const unsigned v = values >> 4;
    ptx::wgmma_fence();
#pragma unroll
    for (int i = 0; i < kN / shared::kSlots; ++i) {
      pv_product(o, &p[4 * i], ptx::descriptor_of_32(v + i * (kConfig.transposed_rows() * shared::kSlots / 16)),
                 i > 0 ? 1 : accumulate);
    }
  } else {
    const unsigned v = (values >> 4) | static_cast<unsigned>(kN * 128 / 16) << 16;
    ptx::wgmma_fence();
#pragma unroll
    for (int i = 0; i < kN / 16; ++i) {
      pv_product(o, &p[4 * i], ptx::descriptor(v + i * ptx::kNextRows), i > 0 ? 1 : accumulate);
    }
  }
  ptx::wgmma_commit();
}

}  // namespace heddle
