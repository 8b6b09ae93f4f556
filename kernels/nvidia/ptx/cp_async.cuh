// Copies of a thread from global to shared memory that go on while it does (cp.async).
#pragma once

#include "ptx/barrier.cuh"

namespace heddle::ptx {

/// 16 bytes, which divide both addresses: the first `bytes` of them are copied, the others become zeros and are not
/// read.
__device__ __forceinline__ void gather(Address to, unsigned long long from, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
/// Makes a group of this thread's copies since the last group.
__device__ __forceinline__ void gather_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
/// Waits until all but the latest kGroups groups of this thread's copies have been written.
template <int kGroups>
__device__ __forceinline__ void gather_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kGroups) : "memory");
}

/// This thread arrives at the barrier, which counts it, once all that it has asked for so far has been written.
__device__ __forceinline__ void arrive_behind_copies(Address barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

}  // namespace heddle::ptx
