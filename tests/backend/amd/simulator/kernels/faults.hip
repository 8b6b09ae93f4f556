// Kernels that are wrong, each in one way that the simulator must find.
#include "device.h"

// The sum is stored before the load that it needs was waited for. The wait stands behind the use.
KERNEL GROUP_SIZE(64) void missing_wait_for_global(u32* out, const u32* in) {
  u32 offset = thread_x() * 4, loaded, sum;
#if defined(__gfx90a__) || defined(__gfx942__)
  asm volatile("global_load_dword %0, %2, %3\n\tv_add_u32 %1, 1, %0\n\ts_waitcnt vmcnt(0)"
               : "=&v"(loaded), "=&v"(sum)
               : "v"(offset), "s"(in));
#elif defined(__gfx1201__)
  asm volatile("global_load_b32 %0, %2, %3\n\tv_add_nc_u32 %1, 1, %0\n\ts_wait_loadcnt 0"
               : "=&v"(loaded), "=&v"(sum)
               : "v"(offset), "s"(in));
#else
  asm volatile("global_load_b32 %0, %2, %3\n\tv_add_nc_u32 %1, 1, %0\n\ts_waitcnt vmcnt(0)"
               : "=&v"(loaded), "=&v"(sum)
               : "v"(offset), "s"(in));
#endif
  out[thread_x()] = sum;
}

// Two loads are out; the wait leaves one of them out, the one that is used.
KERNEL GROUP_SIZE(64) void wait_for_the_wrong_load(u32* out, const u32* in) {
  u32 offset = thread_x() * 4, first, second, sum;
#if defined(__gfx90a__) || defined(__gfx942__)
  asm volatile(
      "global_load_dword %0, %3, %4\n\tglobal_load_dword %1, %3, %4 offset:256\n\ts_waitcnt vmcnt(1)\n\tv_add_u32 %2, "
      "1, %1\n\ts_waitcnt vmcnt(0)"
      : "=&v"(first), "=&v"(second), "=&v"(sum)
      : "v"(offset), "s"(in));
#elif defined(__gfx1201__)
  asm volatile(
      "global_load_b32 %0, %3, %4\n\tglobal_load_b32 %1, %3, %4 offset:256\n\ts_wait_loadcnt 1\n\tv_add_nc_u32 %2, 1, "
      "%1\n\ts_wait_loadcnt 0"
      : "=&v"(first), "=&v"(second), "=&v"(sum)
      : "v"(offset), "s"(in));
#else
  asm volatile(
      "global_load_b32 %0, %3, %4\n\tglobal_load_b32 %1, %3, %4 offset:256\n\ts_waitcnt vmcnt(1)\n\tv_add_nc_u32 %2, "
      "1, %1\n\ts_waitcnt vmcnt(0)"
      : "=&v"(first), "=&v"(second), "=&v"(sum)
      : "v"(offset), "s"(in));
#endif
  out[thread_x()] = sum + first;
}

// The same as above, but the load that was waited for is the one that is used: nothing is wrong.
KERNEL GROUP_SIZE(64) void wait_for_the_right_load(u32* out, const u32* in) {
  u32 offset = thread_x() * 4, first, second, sum;
#if defined(__gfx90a__) || defined(__gfx942__)
  asm volatile(
      "global_load_dword %0, %3, %4\n\tglobal_load_dword %1, %3, %4 offset:256\n\ts_waitcnt vmcnt(1)\n\tv_add_u32 %2, "
      "1, %0\n\ts_waitcnt vmcnt(0)"
      : "=&v"(first), "=&v"(second), "=&v"(sum)
      : "v"(offset), "s"(in));
#elif defined(__gfx1201__)
  asm volatile(
      "global_load_b32 %0, %3, %4\n\tglobal_load_b32 %1, %3, %4 offset:256\n\ts_wait_loadcnt 1\n\tv_add_nc_u32 %2, 1, "
      "%0\n\ts_wait_loadcnt 0"
      : "=&v"(first), "=&v"(second), "=&v"(sum)
      : "v"(offset), "s"(in));
#else
  asm volatile(
      "global_load_b32 %0, %3, %4\n\tglobal_load_b32 %1, %3, %4 offset:256\n\ts_waitcnt vmcnt(1)\n\tv_add_nc_u32 %2, "
      "1, %0\n\ts_waitcnt vmcnt(0)"
      : "=&v"(first), "=&v"(second), "=&v"(sum)
      : "v"(offset), "s"(in));
#endif
  out[thread_x()] = sum + second;
}

// LDS is written and read by other waves with a barrier between, but the writes are not waited for before the barrier.
KERNEL GROUP_SIZE(128) void barrier_before_lds_arrived(u32* out) {
  SHARED static u32 tile[128];
  tile[thread_x()] = thread_x();
  u32 address = thread_x() * 4, value = thread_x() + 5;
#if defined(__gfx90a__) || defined(__gfx942__)
  asm volatile("ds_write_b32 %0, %1\n\ts_barrier" : : "v"(address), "v"(value) : "memory");
#elif defined(__gfx1201__)
  asm volatile("ds_store_b32 %0, %1\n\ts_barrier_signal -1\n\ts_barrier_wait -1"
               :
               : "v"(address), "v"(value)
               : "memory");
#else
  asm volatile("ds_store_b32 %0, %1\n\ts_barrier" : : "v"(address), "v"(value) : "memory");
#endif
  out[thread_x()] = tile[127 - thread_x()];
}

KERNEL GROUP_SIZE(128) void missing_barrier_after_write(u32* out, const u32* in) {
  SHARED static u32 tile[128];
  tile[thread_x()] = in[thread_x()];
  out[thread_x()] = tile[127 - thread_x()];
}

// The tile is filled again while other waves may still read it.
KERNEL GROUP_SIZE(128) void missing_barrier_after_read(u32* out, const u32* in) {
  SHARED static u32 tile[128];
  u32 sum = 0;
  for (u32 step = 0; step < 2; ++step) {
    tile[thread_x()] = in[step * 128 + thread_x()];
    barrier();
    sum += tile[127 - thread_x()];
  }
  out[thread_x()] = sum;
}

KERNEL GROUP_SIZE(64) void out_of_bounds_read(u32* out, const u32* in, u32 n) {
  if (thread_x() <= n) out[thread_x()] = in[thread_x()];  // <= should be <
}

KERNEL GROUP_SIZE(64) void out_of_bounds_write(u32* out, u32 n) {
  if (thread_x() <= n) out[thread_x()] = thread_x();
}

KERNEL GROUP_SIZE(64) void lds_out_of_bounds(u32* out, const u32* in) {
  SHARED static u32 tile[64];
  tile[in[thread_x()]] = thread_x();
  barrier();
  out[thread_x()] = tile[thread_x()];
}

KERNEL GROUP_SIZE(64) void duplicate_store(u32* out, u32 stride) {
  out[(group_x() * stride + thread_x()) % 96] = thread_x();
}

KERNEL GROUP_SIZE(64) void unwritten_lds(u32* out) {
  SHARED static u32 tile[64];
  if (thread_x() % 2 == 0) tile[thread_x()] = thread_x();
  barrier();
  out[thread_x()] = tile[thread_x()] + 1;
}

KERNEL GROUP_SIZE(64) void unwritten_register(u32* out) {
  u32 junk;
  asm volatile("; %0 is never written" : "=v"(junk));
  out[thread_x()] = junk + 1;
}

// Half of the value is written; the other half reaches the output.
KERNEL GROUP_SIZE(64) void unwritten_half(u32* out, const u16* in) {
  SHARED static u16 tile[64][2];
  tile[thread_x()][0] = in[thread_x()];
  barrier();
  out[thread_x()] = *(u32*)tile[thread_x()];
}

KERNEL GROUP_SIZE(64) void branch_on_unwritten_memory(u32* out, const u32* in) {
  if (in[group_x()] > 5) out[thread_x()] = 1;
}

KERNEL GROUP_SIZE(128) void barrier_in_a_branch(u32* out, const u32* in) {
  u32 wave = (u32)__builtin_amdgcn_readfirstlane((int)(thread_x() / __AMDGCN_WAVEFRONT_SIZE));
  if (in[wave] != 0) __builtin_amdgcn_s_barrier();
  out[thread_x()] = wave;
}

KERNEL GROUP_SIZE(64) void runs_on(u32* out, const volatile u32* in) {
  while (in[0] == 0) {
  }
  out[thread_x()] = 1;
}

KERNEL GROUP_SIZE(64) void uses_what_is_not_simulated(u32* out) {
  u32 time;
#if defined(__gfx90a__) || defined(__gfx942__)
  asm volatile("s_getreg_b32 %0, hwreg(HW_REG_HW_ID)" : "=s"(time));
#else
  asm volatile("s_getreg_b32 %0, hwreg(HW_REG_HW_ID1)" : "=s"(time));
#endif
  out[thread_x()] = time;
}

KERNEL GROUP_SIZE(64) void misaligned_atomic(u8* counters) {
  __hip_atomic_fetch_add((u32*)(counters + 2), 1u, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}

// Many lanes ask for different dwords of one bank.
KERNEL GROUP_SIZE(64) void bank_conflicts(u32* out, const u32* in) {
  SHARED static u32 tile[64 * 32];
  tile[thread_x() * 32] = in[thread_x()];
  barrier();
  out[thread_x()] = tile[(63 - thread_x()) * 32];
}

#if defined(__gfx1100__)
// gfx11 reads A and B of both halves of the wave: lanes 16 to 31 must hold what lanes 0 to 15 do.
typedef _Float16 half16 __attribute__((ext_vector_type(16)));
typedef float float8 __attribute__((ext_vector_type(8)));
KERNEL GROUP_SIZE(32) void halves_differ(float8* out, const half16* in) {
  half16 a = in[thread_x()];  // % 16 is missing
  out[thread_x()] = __builtin_amdgcn_wmma_f32_16x16x16_f16_w32(a, in[thread_x() % 16], (float8){});
}
#endif
