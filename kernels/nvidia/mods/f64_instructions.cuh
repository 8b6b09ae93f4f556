// The functions of f64 that mods need: CUDA's own. (Tests of mods on the host bring a file of their own under this
// name.)
#pragma once

namespace heddle::ops::f64 {

// Within 2 ulp by CUDA's documentation, but for erfc: 5.
#define HEDDLE_REAL_FUNCTION(name) \
  __device__ __forceinline__ double name(double x) { return ::name(x); }
#include "shared/real_functions.def"
__device__ __forceinline__ double pow(double x, double y) { return ::pow(x, y); }
__device__ __forceinline__ double rsqrt(double x) { return ::rsqrt(x); }
__device__ __forceinline__ double sqrt(double x) { return __dsqrt_rn(x); }
__device__ __forceinline__ double fabs(double x) { return ::fabs(x); }
__device__ __forceinline__ double floor(double x) { return ::floor(x); }
__device__ __forceinline__ double ceil(double x) { return ::ceil(x); }
__device__ __forceinline__ double rint(double x) { return ::rint(x); }
__device__ __forceinline__ double trunc(double x) { return ::trunc(x); }
__device__ __forceinline__ double fmod(double x, double y) { return ::fmod(x, y); }
__device__ __forceinline__ double copysign(double x, double y) { return ::copysign(x, y); }

}  // namespace heddle::ops::f64
