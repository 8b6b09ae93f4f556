// A finished tile's way out: o through shared memory and TMA, lse by ordinary stores; and queries that attend nothing.
#pragma once

#include "pieces/memory.cuh"
#include "ptx/math.cuh"
#include "ptx/tma.cuh"

namespace heddle {

using shared::TilePlace;

/// 64 rows of one warpgroup. o: registers, 64 x head_dim; `factor` multiplies the thread's two rows.
template <ForwardSm90Config kConfig>
__device__ __forceinline__ void store_output(const SharedMemory<kConfig>& memory, const ptx::TensorMap& map,
                                             int warpgroup, const TilePlace& place,
                                             const float (&o)[kConfig.head_dim / 2], const float (&factor)[2]) {
  const int thread = threadIdx.x & 127, lane = thread & 31, warp = thread >> 5;
  const ptx::Address staged = memory.output(warpgroup);  // shared, [o_panels][64][64], 128-byte swizzle
  const int row = warp * 16 + (lane & 7) + 8 * ((lane >> 3) & 1);
#pragma unroll
  for (int first_panel = 0; first_panel < kConfig.panels(); first_panel += kConfig.o_panels) {
    // A tile that is repeated overwrites what it wrote before, so that has to be written.
    if (thread == 0 && first_panel == 0) ptx::tma_store_wait();
    if (thread == 0 && first_panel > 0) ptx::tma_store_wait_read();
    ptx::named_barrier(1 + warpgroup, 128);
#pragma unroll
    for (int c = 0; c < kConfig.o_panels * 4; ++c) {
      const int d = 8 * (first_panel * 4 + c);  // registers of 16 columns
      const int chunk = (c % 4) * 2 + (lane >> 4);
      const ptx::Address to = staged + (c / 4) * 64 * 128 + row * 128 + ((chunk ^ (row & 7)) * 16);
      asm volatile("stmatrix.sync.aligned.x4.m8n8.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to),
                   "r"(ptx::pack<kConfig.f16>(o[d] * factor[0], o[d + 1] * factor[0])),
                   "r"(ptx::pack<kConfig.f16>(o[d + 2] * factor[1], o[d + 3] * factor[1])),
                   "r"(ptx::pack<kConfig.f16>(o[d + 4] * factor[0], o[d + 5] * factor[0])),
                   "r"(ptx::pack<kConfig.f16>(o[d + 6] * factor[1], o[d + 7] * factor[1]))
                   : "memory");
    }
    ptx::fence_for_tma();
    ptx::named_barrier(1 + warpgroup, 128);
    if (thread == 0) {
      for (int panel = 0; panel < kConfig.o_panels; ++panel) {
        ptx::tma_store(map, staged + panel * 64 * 128, (first_panel + panel) * 64, place.q_first + 64 * warpgroup,
                       place.head, place.batch);
      }
      ptx::tma_store_commit();
    }
  }
}

__device__ __forceinline__ void store_lse(const shared::ForwardSm90Params& params, const TilePlace& place, int row,
                                          float lse) {
  params.lse[place.batch * params.lse_stride[0] + place.head * params.lse_stride[1] + row * params.lse_stride[2]] = lse;
}

/// o = 0 and lse = -inf for the listed queries, 64 at a time, by all consumer threads of all CTAs.
template <ForwardSm90Config kConfig>
__device__ __forceinline__ void store_fills(const shared::ForwardSm90Params& params) {
  const int thread = threadIdx.x - 128;
  for (int fill = blockIdx.x; fill < params.fill_count; fill += gridDim.x) {
    const TilePlace place = {params.fills[3 * fill] * 64, params.fills[3 * fill + 1], params.fills[3 * fill + 2], 0};
    const int rows = min(64, params.q_len - place.q_first);
    unsigned short* o =
        static_cast<unsigned short*>(params.o) + place.batch * params.o_stride[0] + place.head * params.o_stride[1];
    for (int i = thread; i < rows * (kConfig.head_dim / 8); i += kConfig.threads() - 128) {
      const int row = place.q_first + i / (kConfig.head_dim / 8), column = 8 * (i % (kConfig.head_dim / 8));
      *reinterpret_cast<uint4*>(o + row * params.o_stride[2] + column) = make_uint4(0, 0, 0, 0);
    }
    if constexpr (kConfig.lse) {
      for (int i = thread; i < rows; i += kConfig.threads() - 128) {
        store_lse(params, place, place.q_first + i, -ptx::infinity());
      }
    }
  }
}

}  // namespace heddle
