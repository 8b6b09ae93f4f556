// Rows of bytes between global and shared memory by the copy engine: addresses and sizes are multiples of 16.
#pragma once

#include "ptx/barrier.cuh"

namespace heddle::ptx {

/// Arrives at the barrier with its bytes.
__device__ __forceinline__ void bulk_load(Address to, const void* from, unsigned bytes, Address barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
               "l"(from), "r"(bytes), "r"(barrier)
               : "memory");
}

/// The thread's next tma_store_commit() and waits count it.
__device__ __forceinline__ void bulk_store(float* to, Address from, unsigned bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from), "r"(bytes)
               : "memory");
}
/// Adds floats, each by itself, rounded to nearest; in no order with others. The thread's next tma_store_commit() and
/// waits count it.
__device__ __forceinline__ void bulk_add(float* to, Address from, unsigned bytes) {
  asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(to), "r"(from),
               "r"(bytes)
               : "memory");
}

}  // namespace heddle::ptx
