// Kernels that move data: copies, transposes, narrow elements, arrays in scratch, tables in the code object, atomics.
#include "device.h"

KERNEL GROUP_SIZE(256) void copy(float* out, const float* in, u32 n) {
  u32 i = group_x() * 256 + thread_x();
  if (i < n) out[i] = in[i];
}

typedef float float4 __attribute__((ext_vector_type(4)));

KERNEL GROUP_SIZE(128) void copy_vectors(float4* out, const float4* in, u32 n) {
  for (u32 i = group_x() * 128 + thread_x(); i < n; i += 256) out[i] = in[i] * 2.0f;
}

// Rows of 8, 16 and 64 bits at once; the widths of loads and stores that are not 32 bits.
KERNEL GROUP_SIZE(64) void narrow(u8* out8, u16* out16, u64* out64, const u8* in8, const short* in16,
                                  const signed char* in_s8, u32 n) {
  u32 i = group_x() * 64 + thread_x();
  if (i >= n) return;
  out8[i] = (u8)(in8[i] * 3 + 1);
  out16[i] = (u16)(in16[i] - in_s8[i]);
  out64[i] = (u64)in8[i] * 0x100000001ull + (u64)(i64)in16[i];
}

// A square of 32 × 32 through LDS: blocks of 32 × 8 threads.
KERNEL GROUP_SIZE(256) void transpose(float* out, const float* in, u32 width, u32 height) {
  SHARED static float tile[32][33];
  u32 x = thread_x() % 32, y = thread_x() / 32, left = group_x() * 32, top = group_y() * 32;
  for (u32 r = y; r < 32; r += 8) {
    if (top + r < height && left + x < width) tile[r][x] = in[(u64)(top + r) * width + left + x];
  }
  barrier();
  for (u32 r = y; r < 32; r += 8) {
    if (left + r < width && top + x < height) out[(u64)(left + r) * height + top + x] = tile[x][r];
  }
}

KERNEL GROUP_SIZE(64) void transpose_halves(u16* out, const u16* in) {
  SHARED static u16 tile[64][66];
  for (u32 r = 0; r < 64; ++r) tile[r][thread_x()] = in[r * 64 + thread_x()];
  barrier();
  for (u32 r = 0; r < 64; ++r) out[r * 64 + thread_x()] = tile[thread_x()][r];
}

KERNEL GROUP_SIZE(256) void reduce(float* out, const float* in, u32 n) {
  SHARED static float partial[256];
  float sum = 0;
  for (u32 i = group_x() * 1024 + thread_x(); i < group_x() * 1024 + 1024; i += 256) sum += i < n ? in[i] : 0.0f;
  partial[thread_x()] = sum;
  barrier();
  for (u32 step = 128; step; step /= 2) {
    if (thread_x() < step) partial[thread_x()] += partial[thread_x() + step];
    barrier();
  }
  if (thread_x() == 0) out[group_x()] = partial[0];
}

// An array that is indexed by data: it stands in scratch.
KERNEL GROUP_SIZE(64) void scratch_array(u32* out, const u32* in, u32 n) {
  volatile u32 count[16];
  for (u32 i = 0; i < 16; ++i) count[i] = 0;
  for (u32 i = 0; i < n; ++i) count[in[thread_x() * n + i] % 16] += i + 1;
  for (u32 i = 0; i < 16; ++i) out[thread_x() * 16 + i] = count[i];
}

__attribute__((device)) const u32 primes[16] = {2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53};

KERNEL GROUP_SIZE(64) void table(u32* out, const u32* in) { out[thread_x()] = primes[in[thread_x()] % 16]; }

KERNEL GROUP_SIZE(64) void atomics(u32* counters, float* sum, const u32* in) {
  SHARED static u32 local[4];
  if (thread_x() < 4) local[thread_x()] = 0;
  barrier();
  u32 value = in[group_x() * 64 + thread_x()];
  __hip_atomic_fetch_add(&local[value % 4], value, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_WORKGROUP);
  barrier();
  if (thread_x() < 4) {
    __hip_atomic_fetch_add(&counters[thread_x()], local[thread_x()], __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
  }
  __hip_atomic_fetch_max(&counters[4], value, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
  __hip_atomic_fetch_or(&counters[5], 1u << (value % 32), __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
  u32 ticket = __hip_atomic_fetch_add(&counters[6], 1u, __ATOMIC_ACQ_REL, __HIP_MEMORY_SCOPE_AGENT);
  __hip_atomic_exchange(&counters[8 + ticket], value, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
  u32 expected = 0;
  __hip_atomic_compare_exchange_strong(&counters[7], &expected, value + 1, __ATOMIC_RELAXED, __ATOMIC_RELAXED,
                                       __HIP_MEMORY_SCOPE_AGENT);
  __hip_atomic_fetch_add(sum, (float)(value % 8), __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}

// The last workgroup that arrives adds what all left in memory.
KERNEL GROUP_SIZE(64) void last_block(float* out, float* parts, u32* arrived, const float* in, u32 groups) {
  SHARED static u32 ticket;
  parts[group_x() * 64 + thread_x()] = in[group_x() * 64 + thread_x()] + 1.0f;
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "agent");
  barrier();
  if (thread_x() == 0) ticket = __hip_atomic_fetch_add(arrived, 1u, __ATOMIC_ACQ_REL, __HIP_MEMORY_SCOPE_AGENT);
  barrier();
  if (ticket != groups - 1) return;
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "agent");
  float sum = 0;
  for (u32 g = 0; g < groups; ++g) sum += parts[g * 64 + thread_x()];
  out[thread_x()] = sum;
}

struct Strides {
  i64 row, column;
  u16 scale;
};

KERNEL GROUP_SIZE(64) void strided(float* out, const float* in, Strides from, Strides to, u32 rows) {
  u32 row = group_y(), column = group_x() * 64 + thread_x();
  out[row * to.row + column * to.column] =
      in[(i64)(rows - 1 - row) * from.row + column * from.column] * from.scale + group_z();
}
