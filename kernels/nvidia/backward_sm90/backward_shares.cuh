// The sums of a tile whose steps several CTAs share (shared/backward_tiles.h). Each warp leaves its rows of dV and dK
// in memory and counts itself; the last one reads those of all shares. They are added in the order of the steps,
// whoever comes last, so each run has the same bits.
#pragma once

#include "families/backward_sm90/shared/backward_sm90_config.h"
#include "families/backward_sm90/shared/backward_sm90_params.h"
#include "ptx/counter.cuh"
#include "ptx/global_floats.cuh"

namespace heddle {

/// By a warp. Whether it is the last of its tile's; `d` has the sums of all shares then. `tensor`: 0 of dV, 1 of dK.
template <auto kConfig, int kCount>
__device__ __forceinline__ bool add_shares(const shared::SharedSums& shares, int word, int warpgroup, int tensor,
                                           float (&d)[kCount]) {
  constexpr int kChunk = 128 * 4;  // four floats of each thread
  constexpr int kSlot = kConfig.share_floats() / (kConfig.warpgroups * 2);
  static_assert(kCount / 4 * kChunk <= kSlot);
  int thread = static_cast<int>(threadIdx.x & 127);
  asm volatile("" : "+r"(thread));  // what follows from it must not stay in registers beside products
  const int count = shared::shares_of(word);
  const int slot = (shared::first_place_of(word) * kConfig.warpgroups + warpgroup) * 2 + tensor;
  float* const all = shares.sums + static_cast<long long>(slot) * kSlot + 4 * thread;
  float* const own = all + shared::number_of_share(word) * kConfig.share_floats();
#pragma unroll
  for (int i = 0; i < kCount / 4; ++i) ptx::store_floats(own + i * kChunk, &d[4 * i]);
  __syncwarp();
  unsigned before = 0;
  if (thread % 32 == 0) before = ptx::arrive(shares.counters + slot * 4 + thread / 32);
  before = __shfl_sync(~0U, before, 0);
  if (before + 1 != static_cast<unsigned>(count)) return false;
#pragma unroll
  for (int i = 0; i < kCount / 4; ++i) ptx::load_floats(all + i * kChunk, &d[4 * i]);
#pragma unroll 1
  for (int share = 1; share < count; ++share) {
    const float* const other = all + share * kConfig.share_floats();
#pragma unroll
    for (int i = 0; i < kCount / 4; ++i) {
      float x[4];
      ptx::load_floats(other + i * kChunk, x);
#pragma unroll
      for (int e = 0; e < 4; ++e) d[4 * i + e] += x[e];
    }
  }
  return true;
}

}  // namespace heddle
