// Barriers in shared memory (mbarrier), named barriers, proxy fences.
#pragma once

namespace heddle::ptx {

using Address = unsigned;  // of shared memory

__device__ __forceinline__ Address address_of(const void* shared) {
  return static_cast<Address>(__cvta_generic_to_shared(shared));
}

__device__ __forceinline__ void barrier_init(Address barrier, unsigned arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}
/// Makes the initialised barriers visible to the other threads (after a __syncthreads) and to TMA.
__device__ __forceinline__ void barrier_init_done() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void barrier_arrive(Address barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
/// One arrival of a warp, behind what all its threads have read or written. `lane`: the thread's number in it.
__device__ __forceinline__ void barrier_arrive_by_warp(Address barrier, int lane) {
  __syncwarp();
  if (lane == 0) barrier_arrive(barrier);
}
__device__ __forceinline__ void barrier_arrive_by_warp(Address barrier) {
  barrier_arrive_by_warp(barrier, static_cast<int>(threadIdx.x & 31));
}
/// Arrives, and lets the phase wait for `bytes` bytes of TMA.
__device__ __forceinline__ void barrier_arrive_expecting(Address barrier, unsigned bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
/// Returns when the phase of that parity is over.
__device__ __forceinline__ void barrier_wait(Address barrier, unsigned parity) {
  asm volatile(
      "{\n"
      ".reg .pred over;\n"
      "again: mbarrier.try_wait.parity.shared::cta.b64 over, [%0], %1, 0x989680;\n"
      "@over bra done;\n"
      "bra again;\n"
      "done:\n"
      "}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

/// Waits for four barriers: if all are over, their answers take one latency.
__device__ __forceinline__ void barrier_wait(Address first, unsigned first_parity, Address second,
                                             unsigned second_parity, Address third, unsigned third_parity,
                                             Address fourth, unsigned fourth_parity) {
  asm volatile(
      "{\n"
      ".reg .pred a, b, c, d;\n"
      "mbarrier.test_wait.parity.shared::cta.b64 a, [%0], %1;\n"
      "mbarrier.test_wait.parity.shared::cta.b64 b, [%2], %3;\n"
      "mbarrier.test_wait.parity.shared::cta.b64 c, [%4], %5;\n"
      "mbarrier.test_wait.parity.shared::cta.b64 d, [%6], %7;\n"
      "and.pred a, a, b;\n"
      "and.pred c, c, d;\n"
      "and.pred a, a, c;\n"
      "@a bra done;\n"
      "of_first: mbarrier.try_wait.parity.shared::cta.b64 a, [%0], %1, 0x989680;\n"
      "@!a bra of_first;\n"
      "of_second: mbarrier.try_wait.parity.shared::cta.b64 a, [%2], %3, 0x989680;\n"
      "@!a bra of_second;\n"
      "of_third: mbarrier.try_wait.parity.shared::cta.b64 a, [%4], %5, 0x989680;\n"
      "@!a bra of_third;\n"
      "of_fourth: mbarrier.try_wait.parity.shared::cta.b64 a, [%6], %7, 0x989680;\n"
      "@!a bra of_fourth;\n"
      "done:\n"
      "}" ::"r"(first),
      "r"(first_parity), "r"(second), "r"(second_parity), "r"(third), "r"(third_parity), "r"(fourth), "r"(fourth_parity)
      : "memory");
}

/// Whether it is, now.
__device__ __forceinline__ bool barrier_is_over(Address barrier, unsigned parity) {
  int over;
  asm volatile(
      "{\n"
      ".reg .pred over;\n"
      "mbarrier.test_wait.parity.shared::cta.b64 over, [%1], %2;\n"
      "selp.b32 %0, 1, 0, over;\n"
      "}"
      : "=r"(over)
      : "r"(barrier), "r"(parity)
      : "memory");
  return over != 0;
}

/// A ring of buffers seen by one side: which slot is next, and the parity to wait for. The side that waits for filled
/// buffers starts at parity 0, the side that waits for empty ones at 1.
struct Ring {
  int slot = 0;
  unsigned parity;
  __device__ __forceinline__ explicit Ring(unsigned first_parity) : parity(first_parity) {}
  __device__ __forceinline__ void advance(int slots) {
    if (++slot == slots) {
      slot = 0;
      parity ^= 1;
    }
  }
};

/// A ring in one register, for few slots.
struct PackedRing {
  unsigned word;  // 2 * slot + parity
  __device__ __forceinline__ explicit PackedRing(unsigned first_parity) : word(first_parity) {}
  __device__ __forceinline__ void advance(int slots) {
    word += 2;
    if (word >= 2 * slots) word = (word & 1) ^ 1;
  }
};
template <bool kPacked>
struct RingChoice {
  using Type = Ring;
};
template <>
struct RingChoice<true> {
  using Type = PackedRing;
};
template <bool kPacked>
using ChooseRing = typename RingChoice<kPacked>::Type;
__device__ __forceinline__ int slot_of(const Ring& ring) { return ring.slot; }
__device__ __forceinline__ unsigned parity_of(const Ring& ring) { return ring.parity; }
__device__ __forceinline__ int slot_of(const PackedRing& ring) { return static_cast<int>(ring.word >> 1); }
__device__ __forceinline__ unsigned parity_of(const PackedRing& ring) { return ring.word & 1; }

/// Barrier 1 to 15 over `threads` threads, in whole warps.
__device__ __forceinline__ void named_barrier(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/// Ordinary stores to shared memory before (cp.async, once waited for, is one), reads by TMA and by products after.
__device__ __forceinline__ void fence_for_tma() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

template <int kRegisters>
__device__ __forceinline__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

}  // namespace heddle::ptx
