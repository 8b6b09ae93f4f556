// Arithmetic of f32 and f64 for fragments that need no other: full precision of the type, subnormal numbers kept.
#pragma once

#include "portable/fragments/own_elements.cuh"
#include "portable/fragments/warp.cuh"
#include "ptx/math.cuh"
#include "ptx/mma_sync.cuh"

namespace heddle::portable {

/// The arithmetic of the storage type.
template <bool kWide>
struct FmaArithmetic {
  using Real = float;
  static __device__ __forceinline__ float exp2(float x) { return exp2f(x); }
  static __device__ __forceinline__ float log2(float x) { return log2f(x); }
  static __device__ __forceinline__ float reciprocal(float x) { return 1.0F / x; }
  template <class Params>
  static __device__ __forceinline__ float scale(const Params& params) {
    return params.scale32;
  }
};
template <>
struct FmaArithmetic<true> {
  using Real = double;
  static __device__ __forceinline__ double exp2(double x) { return f64::exp2(x); }
  static __device__ __forceinline__ double log2(double x) { return f64::log2(x); }
  static __device__ __forceinline__ double reciprocal(double x) { return 1.0 / x; }
  template <class Params>
  static __device__ __forceinline__ double scale(const Params& params) {
    return params.scale;
  }
};

/// The arithmetic that fragments have (README.md), of f64 if kWide.
template <bool kWide>
struct PlainNumbers : WarpOfThreads {
  using Arithmetic = FmaArithmetic<kWide>;
  using Real = typename Arithmetic::Real;

  static __device__ __forceinline__ Real exp2(Real x) { return Arithmetic::exp2(x); }
  static __device__ __forceinline__ Real log2(Real x) { return Arithmetic::log2(x); }
  static __device__ __forceinline__ Real reciprocal(Real x) { return Arithmetic::reciprocal(x); }
  template <class Params>
  static __device__ __forceinline__ Real scale(const Params& params) {
    return Arithmetic::scale(params);
  }
  template <int kRows, int kColumns>
  static __device__ __forceinline__ void clear(OwnElements<Real, kRows, kColumns>& s) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int c = 0; c < kColumns; ++c) s.x[r][c] = 0;
    }
  }
  static __device__ __forceinline__ Real infinity() { return static_cast<Real>(ptx::infinity()); }
  static __device__ __forceinline__ Real nan() { return static_cast<Real>(__int_as_float(0x7fffffff)); }
  static __device__ __forceinline__ Real fused(Real x, Real y, Real z) {
    if constexpr (sizeof(Real) == 8) return f64::fma(x, y, z);
    return fmaf(x, y, z);
  }
  static __device__ __forceinline__ Real larger(Real x, Real y) {
    if constexpr (sizeof(Real) == 8) return f64::larger(x, y);
    return fmaxf(x, y);
  }
  static __device__ __forceinline__ Real magnitude(Real x) { return x < 0 ? -x : x; }
  static __device__ __forceinline__ Real floor(Real x) {
    if constexpr (sizeof(Real) == 8) return f64::floor(x);
    return floorf(x);
  }
  static __device__ __forceinline__ unsigned short half_bits(float x) {
    return static_cast<unsigned short>(ptx::pack<true>(x, 0));
  }
  static __device__ __forceinline__ unsigned short bfloat_bits(float x) {
    return static_cast<unsigned short>(ptx::pack<false>(x, 0));
  }
};

}  // namespace heddle::portable
