// Products of one warp, and what brings their operands: mma, ldmatrix, cp.async. sm_80 and later. (Tests on the host
// bring a file of their own under this name.)
#pragma once

#include "ptx/tf32_operands.cuh"

namespace heddle::ptx {

/// In shared memory.
using SharedAddress = unsigned;
/// The shared memory that a launch asks for.
__device__ __forceinline__ char* dynamic_memory() {
  extern __shared__ __align__(128) char memory[];
  return memory;
}
__device__ __forceinline__ SharedAddress shared_address(const void* pointer) {
  return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

/// d += a b, 16 x 8 x 16, f16 or bf16 in, f32 out. Thread `lane` has, with g = lane / 4 and t = lane % 4: of d columns
/// 2 t and 2 t + 1 of rows g (d[0], d[1]) and g + 8 (d[2], d[3]); of a columns 2 t and 2 t + 1 of row g (a[0]) and of
/// row g + 8 (a[1]), and 8 columns on the same (a[2], a[3]); of b rows 2 t and 2 t + 1 of column g (b0), and 8 rows on
/// (b1).
template <bool kF16>
__device__ __forceinline__ void mma(float& d0, float& d1, float& d2, float& d3, const unsigned (&a)[4], unsigned b0,
                                    unsigned b1) {
  if constexpr (kF16) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d0), "+f"(d1), "+f"(d2), "+f"(d3)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d0), "+f"(d1), "+f"(d2), "+f"(d3)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

/// d += a b, 16 x 8 x 8, tf32 in (to_tf32()), f32 out. Thread `lane` has of d what it has of mma()'s; of a column t of
/// row g (a[0]) and of row g + 8 (a[1]), and 4 columns on the same (a[2], a[3]); of b row t of column g (b0), and 4
/// rows on (b1).
__device__ __forceinline__ void mma_tf32(float& d0, float& d1, float& d2, float& d3, const unsigned (&a)[4],
                                         unsigned b0, unsigned b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(d0), "+f"(d1), "+f"(d2), "+f"(d3)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// d += a b, 8 x 8 x 4, f64. Thread `lane` has of d columns 2 t and 2 t + 1 of row g, of a column t of row g, of b row
/// t of column g.
__device__ __forceinline__ void mma_f64_of_8(double& d0, double& d1, double a, double b) {
  asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
               : "+d"(d0), "+d"(d1)
               : "d"(a), "d"(b));
}
/// d += a b, 16 x 8 x 8, f64. Thread `lane` has of d what it has of mma()'s; of a column t of row g (a[0]) and of row
/// g + 8 (a[1]), and 4 columns on the same (a[2], a[3]); of b row t of column g (b0), and 4 rows on (b1). sm_90 has it
/// as one instruction; all others, later ones too, as four of 8 x 8 x 4 (DMMA.8x8x4 in their machine code).
__device__ __forceinline__ void mma_f64(double& d0, double& d1, double& d2, double& d3, const double (&a)[4], double b0,
                                        double b1) {
#if __CUDA_ARCH__ / 10 == 90
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+d"(d0), "+d"(d1), "+d"(d2), "+d"(d3)
      : "d"(a[0]), "d"(a[1]), "d"(a[2]), "d"(a[3]), "d"(b0), "d"(b1));
#else
  mma_f64_of_8(d0, d1, a[0], b0);
  mma_f64_of_8(d2, d3, a[1], b0);
  mma_f64_of_8(d0, d1, a[2], b1);
  mma_f64_of_8(d2, d3, a[3], b1);
#endif
}

/// Four matrices of 8 x 8 halves. Lane l names row l % 8 of matrix l / 8, 16 bytes at a multiple of 16. Thread `lane`
/// gets of each matrix row lane / 4, columns 2 (lane % 4) and the next; kTransposed: of column lane / 4 these rows.
template <bool kTransposed>
__device__ __forceinline__ void load_matrices(unsigned (&x)[4], SharedAddress row) {
  if constexpr (kTransposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(row)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(row)
                 : "memory");
  }
}

/// Asks for kBytes (4, 8 or 16) of global memory, of which the first `valid` are read and the others are 0.
template <int kBytes>
__device__ __forceinline__ void copy_async(SharedAddress to, const void* from, int valid) {
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(valid) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(from), "n"(kBytes), "r"(valid)
                 : "memory");
  }
}
/// copy_async() of 16 bytes, of rows that are whole lines of 128: the L2 cache fetches the line. (With a policy of the
/// L2 cache, too, ptxas 13.0 makes instructions of some kernels that the chip does not know: "[R12+UR0], desc[UR1]".)
__device__ __forceinline__ void copy_async_of_line(SharedAddress to, const void* from, int valid) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(valid) : "memory");
}
/// Likewise, if `asks`: without a branch, which products of warpgroups around it would not bear.
__device__ __forceinline__ void copy_async_of_line(SharedAddress to, const void* from, int valid, bool asks) {
  asm volatile(
      "{\n.reg .pred asks;\nsetp.ne.b32 asks, %3, 0;\n"
      "@asks cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;\n}" ::"r"(to),
      "l"(from), "r"(valid), "r"(static_cast<int>(asks))
      : "memory");
}
/// All that this thread has asked for is there. (A barrier makes it so for others.)
__device__ __forceinline__ void await_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }
/// The copies that this thread has asked for since the last commit become a group.
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
/// All groups of this thread but the last kGroups are there.
template <int kGroups>
__device__ __forceinline__ void await_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kGroups) : "memory");
}

/// Waits until kThreads threads (whole warps of the CTA) have come to barrier `number`, 1 to 15.
template <int kThreads>
__device__ __forceinline__ void barrier_of(int number) {
  asm volatile("bar.sync %0, %1;" ::"r"(number), "n"(kThreads) : "memory");
}
/// Comes to it for those that wait there, without waiting.
template <int kThreads>
__device__ __forceinline__ void arrive_at(int number) {
  asm volatile("bar.arrive %0, %1;" ::"r"(number), "n"(kThreads) : "memory");
}

__device__ __forceinline__ void store_two(SharedAddress to, unsigned halves) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(to), "r"(halves) : "memory");
}
__device__ __forceinline__ void store_half(SharedAddress to, unsigned short x) {
  asm volatile("st.shared.u16 [%0], %1;" ::"r"(to), "h"(x) : "memory");
}

}  // namespace heddle::ptx
