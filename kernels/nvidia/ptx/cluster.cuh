// Clusters: CTAs that run at once and reach each other's shared memory. address_in() maps
// an address in this CTA to the same offset in another.
#pragma once

#include "ptx/barrier.cuh"

namespace heddle::ptx {

/// The CTA's number in its cluster.
__device__ __forceinline__ int cluster_rank() {
  unsigned rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return static_cast<int>(rank);
}
/// A place of this CTA's shared memory, in the CTA of that rank.
__device__ __forceinline__ Address address_in(int rank, Address own) {
  Address there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(own), "r"(rank));
  return there;
}
/// Waits until all threads of all CTAs have come. Their earlier writes are visible afterwards.
__device__ __forceinline__ void cluster_barrier() {
  asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}
/// Arrives at a barrier of any CTA: `barrier` is of address_in().
__device__ __forceinline__ void barrier_arrive_there(Address barrier) {
  asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}
/// From this CTA's shared memory to another's, whose barrier gets the bytes: multiples of 16.
__device__ __forceinline__ void copy_there(Address to, Address from, unsigned bytes, Address barrier) {
  asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
               "r"(from), "r"(bytes), "r"(barrier)
               : "memory");
}

}  // namespace heddle::ptx
