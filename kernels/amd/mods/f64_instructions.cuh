// kernels/nvidia/mods/f64_instructions.cuh for AMD's compiler: the functions of f64 that mods need.
#pragma once

#include "language/f64_angles.cuh"
#include "language/language.cuh"

namespace heddle::ops::f64 {

#define HEDDLE_REAL_FUNCTION(name) \
  __device__ __forceinline__ double name(double x) { return amd::f64::name(x); }
#include "shared/real_functions.def"
__device__ __forceinline__ double pow(double x, double y) { return amd::f64::pow(x, y); }
__device__ __forceinline__ double rsqrt(double x) { return amd::f64::rsqrt(x); }
__device__ __forceinline__ double sqrt(double x) { return __builtin_sqrt(x); }
__device__ __forceinline__ double fabs(double x) { return __builtin_fabs(x); }
__device__ __forceinline__ double floor(double x) { return __builtin_floor(x); }
__device__ __forceinline__ double ceil(double x) { return __builtin_ceil(x); }
__device__ __forceinline__ double rint(double x) { return __builtin_rint(x); }
__device__ __forceinline__ double trunc(double x) { return __builtin_trunc(x); }
__device__ __forceinline__ double fmod(double x, double y) { return amd::f64::fmod(x, y); }
__device__ __forceinline__ double copysign(double x, double y) { return __builtin_copysign(x, y); }

}  // namespace heddle::ops::f64
