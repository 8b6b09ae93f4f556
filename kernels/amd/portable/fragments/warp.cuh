// kernels/nvidia/portable/fragments/warp.cuh for AMD: a "wave" of 32 threads, which is a wave, or on CDNA half of one.
#pragma once

#include "language/language.cuh"
#include "portable/fragments/of_each_thread.cuh"
#include "shared/strided.h"

namespace heddle::portable {

struct WarpOfThreads : OfEachThread {
  static __device__ __forceinline__ int thread() { return amd::thread(); }
  static __device__ __forceinline__ int threads() { return static_cast<int>(amd::workgroup_threads()); }
  static __device__ __forceinline__ int lane() { return amd::lane_of_32(); }
  /// One value for all threads of the wave, but where a wave is two of 32.
  static __device__ __forceinline__ int wave() {
    if constexpr (amd::kWave == 32) return amd::uniform(amd::thread() / 32);
    return amd::thread() / 32;
  }

  /// If waves share rows, the first ones bring their queries.
  static __device__ __forceinline__ bool brings_queries(int row_waves) { return amd::thread() / 32 < row_waves; }

  static __device__ __forceinline__ void barrier() { amd::barrier_of_all(); }
  static __device__ __forceinline__ bool any_of_wave(bool x) { return amd::any_of_wave(x); }
};

/// Arithmetic of f64.
namespace f64 {
__device__ __forceinline__ double exp2(double x) { return amd::exp2_f64(x); }
__device__ __forceinline__ double log2(double x) { return amd::log2_f64(x); }
__device__ __forceinline__ double fma(double x, double y, double z) { return __builtin_fma(x, y, z); }
__device__ __forceinline__ double larger(double x, double y) { return __builtin_fmax(x, y); }
__device__ __forceinline__ double floor(double x) { return __builtin_floor(x); }
}  // namespace f64

}  // namespace heddle::portable
