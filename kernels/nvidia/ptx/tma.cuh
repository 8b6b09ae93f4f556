// Tensor memory access: boxes of 64 columns between global and shared memory, [batch, head, row, column] coordinates.
#pragma once

#include "ptx/barrier.cuh"

namespace heddle::ptx {

struct alignas(64) TensorMap {
  char opaque[128];
};

/// L2 eviction priorities, as the instructions encode them.
inline constexpr unsigned long long kEvictFirst = 0x12F0000000000000ULL;
inline constexpr unsigned long long kEvictLast = 0x14F0000000000000ULL;
inline constexpr unsigned long long kEvictNormal = 0x1000000000000000ULL;

__device__ __forceinline__ void prefetch_map(const TensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

/// Rows and columns past the tensor's end arrive as zeros and count in the bytes all the same.
__device__ __forceinline__ void tma_load(Address to, const TensorMap& map, Address barrier, int column, int row,
                                         int head, int batch, unsigned long long priority) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
      " [%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(to),
      "l"(&map), "r"(barrier), "r"(column), "r"(row), "r"(head), "r"(batch), "l"(priority)
      : "memory");
}

/// Loads from a tensor whose map ends where a sequence does: its axes are column, row, the sequence's end, head and
/// batch (backend/cuda/hopper/tensor_map.h). `row` counts from the end minus the rows of the longest sequence.
__device__ __forceinline__ void tma_load_before(int end, Address to, const TensorMap& map, Address barrier, int column,
                                                int row, int head, int batch, unsigned long long priority) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
      " [%0], [%1, {%3, %4, %5, %6, %7}], [%2], %8;" ::"r"(to),
      "l"(&map), "r"(barrier), "r"(column), "r"(row), "r"(end), "r"(head), "r"(batch), "l"(priority)
      : "memory");
}

/// Both loads again, to the same place in each CTA of the cluster that `ctas` has a bit for; the barrier at that place
/// in each of them gets the bytes.
__device__ __forceinline__ void tma_load_to(unsigned short ctas, Address to, const TensorMap& map, Address barrier,
                                            int column, int row, int head, int batch, unsigned long long priority) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint"
      " [%0], [%1, {%3, %4, %5, %6}], [%2], %7, %8;" ::"r"(to),
      "l"(&map), "r"(barrier), "r"(column), "r"(row), "r"(head), "r"(batch), "h"(ctas), "l"(priority)
      : "memory");
}
__device__ __forceinline__ void tma_load_before_to(unsigned short ctas, int end, Address to, const TensorMap& map,
                                                   Address barrier, int column, int row, int head, int batch,
                                                   unsigned long long priority) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint"
      " [%0], [%1, {%3, %4, %5, %6, %7}], [%2], %8, %9;" ::"r"(to),
      "l"(&map), "r"(barrier), "r"(column), "r"(row), "r"(end), "r"(head), "r"(batch), "h"(ctas), "l"(priority)
      : "memory");
}

/// Rows past the tensor's end are not written, nor columns, where 16 bytes divide a row's.
__device__ __forceinline__ void tma_store(const TensorMap& map, Address from, int column, int row, int head,
                                          int batch) {
  asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(&map),
               "r"(from), "r"(column), "r"(row), "r"(head), "r"(batch)
               : "memory");
}
/// Like tma_load_before().
__device__ __forceinline__ void tma_store_before(int end, const TensorMap& map, Address from, int column, int row,
                                                 int head, int batch) {
  asm volatile("cp.async.bulk.tensor.5d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5, %6}], [%1];" ::"l"(&map),
               "r"(from), "r"(column), "r"(row), "r"(end), "r"(head), "r"(batch)
               : "memory");
}
__device__ __forceinline__ void tma_store_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
/// Waits until this thread's stores have read their shared memory.
__device__ __forceinline__ void tma_store_wait_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
/// Waits until they have written.
__device__ __forceinline__ void tma_store_wait() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

}  // namespace heddle::ptx
