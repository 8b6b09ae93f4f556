// AMD's instructions, one a function, for clang and hipRTC in HIP mode: no header of HIP is needed. Products of
// matrices stand with the layouts of their operands, in portable/fragments. (Tests on the host bring a file of their
// own under this name.)
#pragma once

#ifndef __device__
#define __device__ __attribute__((device))
#define __global__ __attribute__((global))
#define __shared__ __attribute__((shared))
#endif
#ifndef __forceinline__
#define __forceinline__ inline __attribute__((always_inline))
#endif

namespace heddle::amd {

using Float4 = float __attribute__((ext_vector_type(4)));
using Float8 = float __attribute__((ext_vector_type(8)));
using Float16 = float __attribute__((ext_vector_type(16)));
using Half4 = _Float16 __attribute__((ext_vector_type(4)));
using Half8 = _Float16 __attribute__((ext_vector_type(8)));
using Half16 = _Float16 __attribute__((ext_vector_type(16)));
using Short4 = short __attribute__((ext_vector_type(4)));
using Short8 = short __attribute__((ext_vector_type(8)));
using Short16 = short __attribute__((ext_vector_type(16)));

__device__ __forceinline__ int thread() { return static_cast<int>(__builtin_amdgcn_workitem_id_x()); }
__device__ __forceinline__ int workgroup() { return static_cast<int>(__builtin_amdgcn_workgroup_id_x()); }
/// One value for all threads of the wave, which the compiler knows then.
__device__ __forceinline__ int uniform(int x) { return __builtin_amdgcn_readfirstlane(x); }

// Threads of a wave. (Newer compilers have no macro for it.)
#if defined(__GFX9__) || defined(__gfx900__) || defined(__gfx906__) || defined(__gfx908__) || defined(__gfx90a__) || \
    defined(__gfx940__) || defined(__gfx941__) || defined(__gfx942__) || defined(__gfx950__)
inline constexpr int kWave = 64;
#else
inline constexpr int kWave = 32;
#endif

/// clang 19 takes a fence's wait for needless on gfx9 where a loop comes back to the barrier by a path that stores
/// last.
__device__ __forceinline__ void await_shared_stores() {
  if constexpr (kWave == 64) asm volatile("s_waitcnt lgkmcnt(0)" ::: "memory");
}

/// Orders shared memory alone: loads of global memory stay under way.
__device__ __forceinline__ void barrier() {
#if __clang_major__ >= 19
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup", "local");
  await_shared_stores();
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup", "local");
#else
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
  await_shared_stores();
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
#endif
}
__device__ __forceinline__ void device_fence() { __builtin_amdgcn_fence(__ATOMIC_SEQ_CST, "agent"); }
__device__ __forceinline__ unsigned long long compare_and_swap(unsigned long long* at, unsigned long long from,
                                                               unsigned long long to) {
  __hip_atomic_compare_exchange_strong(at, &from, to, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE, __HIP_MEMORY_SCOPE_AGENT);
  return from;
}

/// A bit for each thread of the wave.
template <int kWave>
__device__ __forceinline__ unsigned long long ballot(bool x) {
#if __has_builtin(__builtin_amdgcn_ballot_w64)
  if constexpr (kWave == 32) return __builtin_amdgcn_ballot_w32(x);
  return __builtin_amdgcn_ballot_w64(x);
#else
  return __builtin_amdgcn_uicmp(x ? 1 : 0, 0, 33);  // of what is not 0
#endif
}
/// kWave threads: 32 or 64.
template <int kWave>
__device__ __forceinline__ bool any(bool x) {
  return ballot<kWave>(x) != 0;
}
/// The value of the thread in the other half of the wave.
template <int kWave>
__device__ __forceinline__ unsigned other_half(unsigned x) {
  if constexpr (kWave == 32) {
    return static_cast<unsigned>(
        __builtin_amdgcn_permlanex16(static_cast<int>(x), static_cast<int>(x), 0x76543210, 0xfedcba98, false, false));
  } else {
    return static_cast<unsigned>(__builtin_amdgcn_ds_bpermute(((thread() & 63) ^ 32) * 4, static_cast<int>(x)));
  }
}

/// The value, computed where all threads of the wave are. clang 19 moves an exchange between lanes into the branch that
/// uses its result alone, where lanes that should give are off.
__device__ __forceinline__ float settled(float x) {
  asm volatile("" : "+v"(x));
  return x;
}

#if __has_builtin(__builtin_amdgcn_exp2f)
__device__ __forceinline__ float exp2(float x) { return __builtin_amdgcn_exp2f(x); }
__device__ __forceinline__ float log2(float x) { return __builtin_amdgcn_logf(x); }
#else
__device__ __forceinline__ float exp2(float x) {
  float y;
  asm("v_exp_f32 %0, %1" : "=v"(y) : "v"(x));
  return y;
}
__device__ __forceinline__ float log2(float x) {
  float y;
  asm("v_log_f32 %0, %1" : "=v"(y) : "v"(x));
  return y;
}
#endif
__device__ __forceinline__ float reciprocal(float x) { return __builtin_amdgcn_rcpf(x); }
/// To 1 ulp, of numbers that are not subnormal.
__device__ __forceinline__ float reciprocal_root(float x) { return __builtin_amdgcn_rsqf(x); }
/// x 2^n, rounded once.
__device__ __forceinline__ float ldexp_f32(float x, int n) { return __builtin_amdgcn_ldexpf(x, n); }
__device__ __forceinline__ double ldexp_f64(double x, int n) { return __builtin_amdgcn_ldexp(x, n); }
/// |x| = m 2^n with m in [1/2, 1).
__device__ __forceinline__ int exponent_of(double x) { return __builtin_amdgcn_frexp_exp(x); }
/// NaN gives the other operand.
__device__ __forceinline__ float larger(float x, float y) { return __builtin_fmaxf(x, y); }

/// To nearest even.
template <bool kF16>
__device__ __forceinline__ unsigned rounded(float x) {
  if constexpr (kF16) return __builtin_bit_cast(unsigned short, static_cast<_Float16>(x));
  const unsigned bits = __builtin_bit_cast(unsigned, x);
  return x != x ? 0x7fffU : (bits + 0x7fffU + (bits >> 16 & 1)) >> 16;
}
template <bool kF16>
__device__ __forceinline__ unsigned pack(float low, float high) {
  return rounded<kF16>(high) << 16 | rounded<kF16>(low);
}
/// The lower, or the upper, halves of two words.
__device__ __forceinline__ unsigned lower_halves(unsigned x, unsigned y) {
  return __builtin_amdgcn_perm(y, x, 0x05040100);
}
__device__ __forceinline__ unsigned upper_halves(unsigned x, unsigned y) {
  return __builtin_amdgcn_perm(y, x, 0x07060302);
}

}  // namespace heddle::amd
