// Operations of mods on f32 that may round together (device_text/expression_text.h, Rounding::contracted). To be
// compiled with contraction, the compiler's default.
#pragma once

#include "mods/instructions.cuh"

namespace heddle::ops::contracted {

__device__ __forceinline__ float add(float x, float y) { return x + y; }
__device__ __forceinline__ float sub(float x, float y) { return x - y; }
__device__ __forceinline__ float mul(float x, float y) { return x * y; }

/// To 2^-22, and to 2^-21 of the result where |x| < 0.65: by an odd polynomial there, else 1 - 2 / (1 + e^2x).
__device__ __forceinline__ float tanh(float x) {
  constexpr float kTwiceLog2E = 2.88539008177792681F;
  const float far = fmaf(-2.0F, reciprocal_near(1.0F + exp2_near(kTwiceLog2E * x)), 1.0F);
  const float u = x * x;
  float near = 0.014639358F;
  near = fmaf(near, u, -0.051530037F);
  near = fmaf(near, u, 0.132981956F);
  near = fmaf(near, u, -0.333315283F);
  near = fmaf(near, u, 0.999999821F) * x;
  return fabsf(x) < 0.65F ? near : far;
}

}  // namespace heddle::ops::contracted
