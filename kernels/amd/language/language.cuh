// The words of CUDA that the device code of kernels/nvidia uses, for clang and hipRTC in HIP mode: no header of HIP is
// needed, and where hipRTC brings its own, these words win. It stands first in every source. Headers beside it stand in
// for headers of kernels/nvidia that have NVIDIA's instructions, under the same names.
#pragma once

#include "portable/amd_instructions.cuh"

// Functions without a word of host or device are device code.
#pragma clang force_cuda_host_device begin

#undef __launch_bounds__
#define __launch_bounds__(threads, ...) __attribute__((amdgpu_flat_work_group_size(threads, threads)))
#define __grid_constant__
#ifndef __align__
#define __align__(bytes) __attribute__((aligned(bytes)))
#endif

#define threadIdx (heddle::amd::Index{static_cast<unsigned>(heddle::amd::thread())})
#define blockIdx (heddle::amd::Index{static_cast<unsigned>(heddle::amd::workgroup())})
#define gridDim (heddle::amd::Index{heddle::amd::workgroups()})
#define blockDim (heddle::amd::Index{heddle::amd::workgroup_threads()})

#define __syncthreads heddle::amd::barrier_of_all
#define __syncwarp heddle::amd::wave_fence
#define __threadfence heddle::amd::device_fence
#define __shfl_sync(mask, ...) heddle::amd::shuffle(__VA_ARGS__)
#define __shfl_xor_sync(mask, x, lanes) heddle::amd::shuffle(x, heddle::amd::lane_of_32() ^ (lanes))
#define __shfl_up_sync(mask, x, lanes) heddle::amd::shuffle_up(x, lanes)
#define __ballot_sync(mask, x) heddle::amd::ballot_of_32(x)
#define __any_sync(mask, x) heddle::amd::any_of_wave(x)
#define __popc(x) __builtin_popcount(x)
#define atomicAdd heddle::amd::add_atomically
#define atomicMax heddle::amd::raise_atomically
#define atomicCAS heddle::amd::compare_and_swap

#define __uint_as_float(x) __builtin_bit_cast(float, static_cast<unsigned>(x))
#define __int_as_float(x) __builtin_bit_cast(float, static_cast<int>(x))
#define __float_as_int(x) __builtin_bit_cast(int, static_cast<float>(x))
#define __float_as_uint(x) __builtin_bit_cast(unsigned, static_cast<float>(x))
#define __longlong_as_double(x) __builtin_bit_cast(double, static_cast<long long>(x))
#define __double_as_longlong(x) __builtin_bit_cast(long long, static_cast<double>(x))
#define __int2float_rn(x) static_cast<float>(static_cast<int>(x))
#define __float2int_rz heddle::amd::saturated_int
#define __double2float_rn(x) static_cast<float>(static_cast<double>(x))
#define __double2float_rz heddle::amd::toward_zero
#define __fadd_rn heddle::amd::add_f32
#define __fsub_rn heddle::amd::sub_f32
#define __fmul_rn heddle::amd::mul_f32
#define __fdiv_rn heddle::amd::div_f32
#define __dadd_rn heddle::amd::add_f64
#define __dsub_rn heddle::amd::sub_f64
#define __dmul_rn heddle::amd::mul_f64
#define __ddiv_rn heddle::amd::div_f64
#define __fma_rn __builtin_fma
#define __fsqrt_rn __builtin_sqrtf
#define floorf __builtin_floorf
#define ceilf __builtin_ceilf
#define rintf __builtin_rintf
#define truncf __builtin_truncf
#define fabsf __builtin_fabsf
#define fmaxf __builtin_fmaxf
#define fmaf __builtin_fmaf
#define copysignf __builtin_copysignf
#define fmodf heddle::amd::mod_f32
#define rsqrtf heddle::amd::rsqrt_f32

#include "language/functions.cuh"

namespace heddle {

struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(16) double2 {
  double x, y;
};
__device__ __forceinline__ uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
__device__ __forceinline__ uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
__device__ __forceinline__ float2 make_float2(float x, float y) { return {x, y}; }
__device__ __forceinline__ float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
__device__ __forceinline__ double2 make_double2(double x, double y) { return {x, y}; }

__device__ __forceinline__ int min(int x, int y) { return y < x ? y : x; }
__device__ __forceinline__ int max(int x, int y) { return x < y ? y : x; }
#define HEDDLE_REAL_FUNCTION(name) \
  __device__ __forceinline__ float name##f(float x) { return amd::name##_f32(x); }
#include "shared/real_functions.def"
__device__ __forceinline__ bool isnan(float x) { return x != x; }
__device__ __forceinline__ double rint(double x) { return __builtin_rint(x); }
__device__ __forceinline__ double fma(double x, double y, double z) { return __builtin_fma(x, y, z); }
__device__ __forceinline__ double fmax(double x, double y) { return __builtin_fmax(x, y); }
__device__ __forceinline__ double exp(double x) { return amd::exp_f64(x); }
__device__ __forceinline__ double exp2(double x) { return amd::exp2_f64(x); }
__device__ __forceinline__ double log(double x) { return amd::log_f64(x); }

namespace amd {

struct Index {
  unsigned x;
};
__device__ __forceinline__ unsigned workgroup_threads() { return __builtin_amdgcn_workgroup_size_x(); }
__device__ __forceinline__ unsigned workgroups() { return __builtin_amdgcn_grid_size_x() / workgroup_threads(); }

/// Device code of CUDA reckons with warps of 32 threads. A wave of 64 lanes counts as two of 32.
__device__ __forceinline__ int lane_of_32() { return thread() & 31; }
/// Like CUDA's: orders memory of all kinds.
__device__ __forceinline__ void barrier_of_all() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
  await_shared_stores();
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}
/// A wave's threads go step by step: only the compiler must not move memory accesses across.
__device__ __forceinline__ void wave_fence() { __builtin_amdgcn_fence(__ATOMIC_ACQ_REL, "wavefront"); }

/// Another thread's value among 32, or among `width` neighbours of them, a power of two.
__device__ __forceinline__ int shuffle(int x, int lane, int width = 32) {
  const int own = __builtin_amdgcn_mbcnt_hi(~0U, __builtin_amdgcn_mbcnt_lo(~0U, 0));
  return __builtin_amdgcn_ds_bpermute(((own & -width) | (lane & (width - 1))) * 4, x);
}
__device__ __forceinline__ float shuffle(float x, int lane, int width = 32) {
  return __builtin_bit_cast(float, shuffle(__builtin_bit_cast(int, x), lane, width));
}
struct TwoWords {
  int low, high;
};
__device__ __forceinline__ double shuffle(double x, int lane, int width = 32) {
  const TwoWords words = __builtin_bit_cast(TwoWords, x);
  return __builtin_bit_cast(double, TwoWords{shuffle(words.low, lane, width), shuffle(words.high, lane, width)});
}
__device__ __forceinline__ long long shuffle(long long x, int lane, int width = 32) {
  return __builtin_bit_cast(long long, shuffle(__builtin_bit_cast(double, x), lane, width));
}
__device__ __forceinline__ unsigned shuffle(unsigned x, int lane, int width = 32) {
  return static_cast<unsigned>(shuffle(static_cast<int>(x), lane, width));
}
/// The value of the thread `lanes` lanes before; the thread's own value if there is no such lane.
__device__ __forceinline__ int shuffle_up(int x, unsigned lanes) {
  const int from = lane_of_32() - static_cast<int>(lanes);
  return shuffle(x, from < 0 ? lane_of_32() : from);
}
__device__ __forceinline__ unsigned ballot_of_32(bool x) {
  return static_cast<unsigned>(ballot<kWave>(x) >> (kWave == 64 ? thread() & 32 : 0));
}
__device__ __forceinline__ bool any_of_wave(bool x) { return any<kWave>(x); }
template <class Number>
__device__ __forceinline__ Number add_atomically(Number* at, Number x) {
  return __hip_atomic_fetch_add(at, x, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}
template <class Number>
__device__ __forceinline__ Number raise_atomically(Number* at, Number x) {
  return __hip_atomic_fetch_max(at, x, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}

}  // namespace amd
}  // namespace heddle
