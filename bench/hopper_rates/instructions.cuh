// The few instructions that the kernels of hopper_rates need, and how they report.
#pragma once

namespace rates {

/// When a warp worked, and how often it went around.
struct Span {
  long long begin, end;        // clocks of its multiprocessor
  long long begin_ns, end_ns;  // of the chip's timer
  long long steps;
};

__device__ __forceinline__ long long nanoseconds() {
  long long now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now)::"memory");
  return now;
}
__device__ __forceinline__ void begin(Span& span) {
  span.begin_ns = nanoseconds();
  span.begin = clock64();
}
__device__ __forceinline__ void end(Span& span, long long steps) {
  span.end = clock64();
  span.end_ns = nanoseconds();
  span.steps = steps;
}

__device__ __forceinline__ unsigned address_of(const void* shared) {
  return static_cast<unsigned>(__cvta_generic_to_shared(shared));
}

/// Two bfloat16 of random sign between 0.125 and 0.5, each word another pair: zeros draw less power than numbers.
__device__ __forceinline__ unsigned random_pair(unsigned seed) {
  unsigned x = seed * 2654435769U + 12345U;
  x ^= x >> 15;
  x *= 2246822519U;
  x ^= x >> 13;
  return (x & 0x80ff80ffU) | 0x3e003e00U;
}

// Products of a warpgroup.

__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int kGroups>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kGroups) : "memory");
}
/// Describes rows of 64 two-byte elements in the 128-byte swizzle; `low`: the address / 16.
__device__ __forceinline__ unsigned long long descriptor(unsigned low) {
  unsigned long long both;
  asm("mov.b64 %0, {%1, %2};" : "=l"(both) : "r"(low), "r"(0x40000040U));
  return both;
}
/// Random operands in shared memory, for all threads of the block.
__device__ __forceinline__ void fill_operands(unsigned* words, int count) {
  for (int i = threadIdx.x; i < count; i += blockDim.x) words[i] = random_pair(i);
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
}

// Barriers and TMA.

__device__ __forceinline__ void barrier_init(unsigned barrier) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barrier));
}
__device__ __forceinline__ void barrier_init_done() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void barrier_expect(unsigned barrier, unsigned bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
__device__ __forceinline__ void barrier_wait(unsigned barrier, unsigned parity) {
  asm volatile(
      "{\n"
      ".reg .pred over;\n"
      "again: mbarrier.try_wait.parity.shared::cta.b64 over, [%0], %1, 0x989680;\n"
      "@!over bra again;\n"
      "}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

struct alignas(64) TensorMap {
  char opaque[128];
};
__device__ __forceinline__ void tma_load(unsigned to, const TensorMap& map, unsigned barrier, int column, int row) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];" ::"r"(
          to),
      "l"(&map), "r"(barrier), "r"(column), "r"(row)
      : "memory");
}

}  // namespace rates
