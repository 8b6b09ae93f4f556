// Common to fragments on NVIDIA's GPUs: a wave is a warp of 32 threads.
#pragma once

#include "ptx/arrival.cuh"
#include "ptx/dependent_launch.cuh"
#include "ptx/float_sums.cuh"
#include "ptx/math.cuh"
#include "shared/strided.h"

namespace heddle::portable {

struct WarpOfThreads {
  static __device__ __forceinline__ int thread() { return static_cast<int>(threadIdx.x); }
  static __device__ __forceinline__ int threads() { return static_cast<int>(blockDim.x); }
  static __device__ __forceinline__ int lane() { return static_cast<int>(threadIdx.x & 31); }
  /// The wave's number, which the compiler knows to be one value for all its threads.
  static __device__ __forceinline__ int wave() { return __shfl_sync(~0U, static_cast<int>(threadIdx.x / 32), 0); }

  /// Waves that share rows all bring the queries: they store equal values.
  static __device__ __forceinline__ bool brings_queries(int) { return true; }

  static __device__ __forceinline__ void barrier() { __syncthreads(); }
  static __device__ __forceinline__ void fence() { __threadfence(); }
  /// Marks a part that few steps reach: the compiler then branches, instead of computing it always and selecting.
  static __device__ __forceinline__ void fork() { asm volatile("" ::: "memory"); }
  /// Keeps the order: the compiler moves no work from below this call above it.
  static __device__ __forceinline__ void step() { __syncwarp(__activemask()); }
  /// Waits until all threads of the wave have come, and sees what they wrote to shared memory.
  static __device__ __forceinline__ void wave_barrier() { __syncwarp(~0U); }
  static __device__ __forceinline__ bool any_of_wave(bool x) { return __any_sync(~0U, x) != 0; }
  static __device__ __forceinline__ unsigned long long compare_and_swap(unsigned long long* at, unsigned long long from,
                                                                        unsigned long long to) {
    return atomicCAS(at, from, to);
  }
  /// Counts the CTA at a word (ptx/arrival.cuh) and returns the count before.
  static __device__ __forceinline__ unsigned long long arrive(unsigned long long* word) { return ptx::arrive(word); }

  /// Waits for the end of the kernel before on the stream, if this one began earlier.
  static __device__ __forceinline__ void wait_for_previous() { ptx::wait_for_previous(); }

  /// Adds neighbours to sums of global memory, in any order.
  static constexpr int kFloatsAdded = ptx::kFloatsAdded;
  static __device__ __forceinline__ void add_floats(float* to, const float (&x)[kFloatsAdded]) {
    ptx::add_floats(to, x);
  }

  // Over the threads of a wave.
  static __device__ __forceinline__ int from_lane(int x, int lane) { return __shfl_sync(~0U, x, lane); }
  static __device__ __forceinline__ float from_lane(float x, int lane) { return __shfl_sync(~0U, x, lane); }
  template <class Number>
  static __device__ __forceinline__ Number wave_sum(Number x) {
    for (int distance = 1; distance < 32; distance *= 2) x += __shfl_xor_sync(~0U, x, distance);
    return x;
  }
  static __device__ __forceinline__ float wave_max(float x) {
    for (int distance = 1; distance < 32; distance *= 2) x = larger(x, __shfl_xor_sync(~0U, x, distance));
    return x;
  }
  static __device__ __forceinline__ int wave_max(int x) {
    for (int distance = 1; distance < 32; distance *= 2) {
      const int other = __shfl_xor_sync(~0U, x, distance);
      x = x < other ? other : x;
    }
    return x;
  }
  /// Over the lanes up to the own one.
  static __device__ __forceinline__ int sum_to(int x) {
    for (int distance = 1; distance < 32; distance *= 2) {
      const int left = __shfl_up_sync(~0U, x, distance);
      if (lane() >= distance) x += left;
    }
    return x;
  }
  static __device__ __forceinline__ int max_to(int x) {
    for (int distance = 1; distance < 32; distance *= 2) {
      const int left = __shfl_up_sync(~0U, x, distance);
      if (lane() >= distance && x < left) x = left;
    }
    return x;
  }
  /// The lanes that have the same number, as bits.
  static __device__ __forceinline__ unsigned lanes_with(int number) { return __match_any_sync(~0U, number); }
  /// The first lane where it holds; -1: none.
  static __device__ __forceinline__ int first_lane(bool holds) {
    return __ffs(static_cast<int>(__ballot_sync(~0U, holds))) - 1;
  }

  template <class Params>
  static __device__ __forceinline__ float scale(const Params& params) {
    return params.scale32;
  }
  static __device__ __forceinline__ float infinity() { return ptx::infinity(); }
  static __device__ __forceinline__ float nan() { return __int_as_float(0x7fffffff); }
  static __device__ __forceinline__ float fused(float x, float y, float z) { return fmaf(x, y, z); }
  static __device__ __forceinline__ float larger(float x, float y) { return fmaxf(x, y); }
  static __device__ __forceinline__ float magnitude(float x) { return fabsf(x); }
  static __device__ __forceinline__ float floor(float x) { return floorf(x); }
};

/// Arithmetic of f64.
namespace f64 {
__device__ __forceinline__ double exp2(double x) { return ::exp2(x); }
__device__ __forceinline__ double log2(double x) { return ::log2(x); }
__device__ __forceinline__ double fma(double x, double y, double z) { return ::fma(x, y, z); }
__device__ __forceinline__ double larger(double x, double y) { return ::fmax(x, y); }
__device__ __forceinline__ double floor(double x) { return ::floor(x); }
}  // namespace f64

}  // namespace heddle::portable
