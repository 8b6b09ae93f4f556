// Stands in for kernels/nvidia/ptx/math.cuh when the host's compiler compiles pieces of kernels: the same functions,
// exact, flushing what the instructions flush.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "mods/instructions.cuh"

inline int __float_as_int(float x) { return std::bit_cast<int>(x); }
inline float __int_as_float(int bits) { return std::bit_cast<float>(bits); }
inline bool __any_sync(unsigned, bool x) { return x; }
inline bool __all_sync(unsigned, bool x) { return x; }
inline void __syncwarp() {}
inline std::size_t __cvta_generic_to_shared(const void*) { return 0; }
inline float __log2f(float x) { return std::log2(x); }
inline float fmaxf(float x, float y) { return std::fmax(x, y); }
inline float fminf(float x, float y) { return std::fmin(x, y); }
inline float fabsf(float x) { return std::fabs(x); }
inline float fmaf(float x, float y, float z) { return std::fma(x, y, z); }

namespace heddle::ptx {

inline constexpr float kLn2 = 0.693147180559945309F, kLog2E = 1.44269504088896341F;

inline float infinity() { return std::numeric_limits<float>::infinity(); }
inline float flushed(float x) { return std::fabs(x) < std::numeric_limits<float>::min() ? 0 : x; }
inline float exp2_fast(float x) { return flushed(static_cast<float>(std::exp2(static_cast<double>(x)))); }
inline float reciprocal(float x) { return flushed(1 / flushed(x)); }
inline float log2_fast(float x) { return static_cast<float>(std::log2(static_cast<double>(flushed(x)))); }
inline float max_positive(float x, float y, float z) { return std::max({x, y, z}); }

}  // namespace heddle::ptx
