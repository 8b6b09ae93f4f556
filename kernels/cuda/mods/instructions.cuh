// Instructions that mods need and the language has no function for. (Tests of mods on the host bring a file of their
// own under this name.)
#pragma once

namespace heddle::ops {

/// NaN if either is NaN.
__device__ __forceinline__ float min_nan(float x, float y) {
  float result;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(x), "f"(y));
  return result;
}
__device__ __forceinline__ float max_nan(float x, float y) {
  float result;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(x), "f"(y));
  return result;
}

/// 1 / x to 1 ulp, for x that are far from 0 and from infinity.
__device__ __forceinline__ float reciprocal_near(float x) {
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

/// The number that the bits of an f16 mean.
__device__ __forceinline__ float from_half(unsigned short bits) {
  float result;
  asm("cvt.f32.f16 %0, %1;" : "=f"(result) : "h"(bits));
  return result;
}

}  // namespace heddle::ops
