// Stands in for kernels/amd/portable/amd_instructions.cuh on the host, as far as functions of reals use it.
#pragma once

#include <cmath>

#define __device__
#define __forceinline__ inline

namespace heddle::amd {

inline float reciprocal_root(float x) { return 1 / std::sqrt(x); }
inline float ldexp_f32(float x, int n) { return std::ldexp(x, n); }
inline double ldexp_f64(double x, int n) { return std::ldexp(x, n); }
inline int exponent_of(double x) {
  int n = 0;
  std::frexp(x, &n);
  return n;
}

}  // namespace heddle::amd
