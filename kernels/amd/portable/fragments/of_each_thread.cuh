// Instructions of each thread for itself, which fragments of AMD's architectures and of plain multiply-adds share.
#pragma once

#include "portable/amd_instructions.cuh"

namespace heddle::portable {

struct OfEachThread {
  static __device__ __forceinline__ void fence() { amd::device_fence(); }
  static __device__ __forceinline__ void fork() { asm volatile("" ::: "memory"); }
  static __device__ __forceinline__ void step() {}
  static __device__ __forceinline__ unsigned long long compare_and_swap(unsigned long long* at, unsigned long long from,
                                                                        unsigned long long to) {
    return amd::compare_and_swap(at, from, to);
  }

  template <class Params>
  static __device__ __forceinline__ float scale(const Params& params) {
    return params.scale32;
  }
  static __device__ __forceinline__ float infinity() { return __builtin_inff(); }
  static __device__ __forceinline__ float nan() { return __builtin_nanf(""); }
  static __device__ __forceinline__ float fused(float x, float y, float z) { return __builtin_fmaf(x, y, z); }
  static __device__ __forceinline__ float larger(float x, float y) { return amd::larger(x, y); }
  static __device__ __forceinline__ float magnitude(float x) { return __builtin_fabsf(x); }
  static __device__ __forceinline__ float floor(float x) { return __builtin_floorf(x); }
};

}  // namespace heddle::portable
