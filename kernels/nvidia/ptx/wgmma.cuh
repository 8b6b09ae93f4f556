// Warpgroup matrix products: fences, waits, descriptors of shared memory. The products themselves are generated for the
// shapes of a kernel (wgmma_text.cc): qk_product() and pv_product().
//
// An accumulator of 64 x N: thread t of the warpgroup, w = t / 32, l = t % 32, holds in d[4 j + 0..1] row 16 w + l / 4
// and columns 8 j + 2 (l % 4) + {0, 1}, in d[4 j + 2..3] the row 8 further down.
#pragma once

#include "ptx/barrier.cuh"

namespace heddle::ptx {

/// Before the first product, and after registers that one reads were written otherwise.
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
/// Waits until at most kGroups committed groups are in flight.
template <int kGroups>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kGroups) : "memory");
}
/// Tells the compiler that a product may have written these registers until now.
template <int kCount>
__device__ __forceinline__ void touch(float (&registers)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(registers[i])::"memory");
}

/// Tells the compiler that the content of these registers is dead: the first product overwrites them.
template <int kCount>
__device__ __forceinline__ void forget(float (&registers)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "=f"(registers[i]));
}

/// A descriptor's address, of a cluster's CTA: the rank that stands above an address of shared memory would be added to
/// the distance of panels.
__device__ __forceinline__ unsigned matrix_at(Address address) { return (address & 0x3ffffU) >> 4; }

/// Descriptor of a tile stored as panels of [rows][64] elements of 2 bytes in the 128-byte swizzle: `low` is the
/// address / 16 and, where columns are the product's rows (V), the distance of panels / 16 above bit 16. The high word
/// says swizzle and 1024 bytes between groups of 8 rows. Built of two words, since 64-bit sums cost registers.
__device__ __forceinline__ unsigned long long descriptor(unsigned low) {
  unsigned long long both;
  asm("mov.b64 %0, {%1, %2};" : "=l"(both) : "r"(low), "r"(0x40000040U));
  return both;
}
/// Steps in a panel to the next 32 bytes of columns, and to the next 16 rows.
inline constexpr unsigned kNextColumns = 16 * 2 / 16;
inline constexpr unsigned kNextRows = 16 * 128 / 16;

/// Describes rows of 32 bytes in the 32-byte swizzle (shared/transposed_values.h): 256 bytes between groups of 8.
__device__ __forceinline__ unsigned long long descriptor_of_32(unsigned low) {
  unsigned long long both;
  asm("mov.b64 %0, {%1, %2};" : "=l"(both) : "r"(low), "r"(0xC0000010U));
  return both;
}

}  // namespace heddle::ptx
