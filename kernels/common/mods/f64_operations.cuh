// The operations of mods whose reals are f64, beside those of mods/operations.cuh: one function a row of
// src/expr/ops.def that takes or gives a real.
#pragma once

#include "mods/operations.cuh"
#include "mods/f64_instructions.cuh"

namespace heddle::ops {

// ---- each operation rounded once, never contracted to a fused multiply-add

__device__ __forceinline__ double add(double x, double y) { return __dadd_rn(x, y); }
__device__ __forceinline__ double sub(double x, double y) { return __dsub_rn(x, y); }
__device__ __forceinline__ double mul(double x, double y) { return __dmul_rn(x, y); }
__device__ __forceinline__ double div(double x, double y) { return __ddiv_rn(x, y); }
__device__ __forceinline__ double neg(double x) { return -x; }
__device__ __forceinline__ double abs(double x) { return f64::fabs(x); }
__device__ __forceinline__ double floor(double x) { return f64::floor(x); }
__device__ __forceinline__ double ceil(double x) { return f64::ceil(x); }
__device__ __forceinline__ double round(double x) { return f64::rint(x); }
__device__ __forceinline__ double trunc(double x) { return f64::trunc(x); }
__device__ __forceinline__ double sign(double x) { return x > 0 ? 1.0 : x < 0 ? -1.0 : x; }
__device__ __forceinline__ double sqrt(double x) { return f64::sqrt(x); }
__device__ __forceinline__ double floor_div(double x, double y) { return f64::floor(__ddiv_rn(x, y)); }
/// The remainder of x after whole multiples of y, moved by y to y's sign.
__device__ __forceinline__ double mod(double x, double y) {
  const double remainder = f64::fmod(x, y);
  if (remainder == 0) return f64::copysign(0.0, y);
  return (remainder < 0) != (y < 0) ? __dadd_rn(remainder, y) : remainder;
}
/// NaN if either is NaN.
__device__ __forceinline__ double min(double x, double y) { return x < y || x != x ? x : y; }
__device__ __forceinline__ double max(double x, double y) { return x > y || x != x ? x : y; }

#define HEDDLE_REAL_FUNCTION(name) \
  __device__ __forceinline__ double name(double x) { return f64::name(x); }
#include "shared/real_functions.def"
__device__ __forceinline__ double rsqrt(double x) { return f64::rsqrt(x); }
__device__ __forceinline__ double pow(double x, double y) { return f64::pow(x, y); }
/// Like the function of f32.
__device__ __forceinline__ double sigmoid(double x) {
  const double small = f64::exp(-f64::fabs(x));
  return __ddiv_rn(x < 0 ? small : 1.0, __dadd_rn(1.0, small));
}

// ---- tests, casts, params, and what columns and rows are asked for

__device__ __forceinline__ bool isnan(double x) { return x != x; }
__device__ __forceinline__ bool isinf(double x) { return f64::fabs(x) == __longlong_as_double(0x7FF0000000000000LL); }
__device__ __forceinline__ double to_f64(int x) { return static_cast<double>(x); }
__device__ __forceinline__ double to_f64(bool x) { return x ? 1.0 : 0.0; }
/// Truncates, saturates, NaN gives 0.
__device__ __forceinline__ int to_i32(double x) {
  if (x >= 2147483648.0) return 2147483647;
  if (x < -2147483648.0) return -2147483647 - 1;
  return x == x ? static_cast<int>(x) : 0;
}
__device__ __forceinline__ double f64_param(unsigned lower, unsigned upper) {
  return __longlong_as_double(static_cast<long long>(static_cast<unsigned long long>(upper) << 32 | lower));
}
/// Whether no computation tells the two values apart.
__device__ __forceinline__ bool same(double x, double y) { return __double_as_longlong(x) == __double_as_longlong(y); }

}  // namespace heddle::ops
