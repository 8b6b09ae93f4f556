// Stands in for kernels/nvidia/mods/instructions.cuh when the host's compiler compiles the text of mods: the device's
// keywords and functions. The compiler's own transcendentals are replaced by what the interpreter computes, so that
// whole expressions can be compared bit for bit.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#define __device__
#define __forceinline__ inline
#define __noinline__

inline struct { unsigned x; } threadIdx;

inline float __fadd_rn(float x, float y) { return x + y; }
inline float __fsub_rn(float x, float y) { return x - y; }
inline float __fmul_rn(float x, float y) { return x * y; }
inline float __fdiv_rn(float x, float y) { return x / y; }
inline float __fsqrt_rn(float x) { return std::sqrt(x); }
inline float __fmaf_rn(float x, float y, float z) { return std::fma(x, y, z); }
inline float __int2float_rn(int x) { return static_cast<float>(x); }
inline float __double2float_rn(double x) { return static_cast<float>(x); }
inline double __fma_rn(double x, double y, double z) { return std::fma(x, y, z); }
inline long long __double_as_longlong(double x) { return std::bit_cast<long long>(x); }
inline double __longlong_as_double(long long bits) { return std::bit_cast<double>(bits); }
inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline float __uint_as_float(unsigned bits) { return std::bit_cast<float>(bits); }
/// Like the instruction: truncates, saturates, NaN gives 0.
inline int __float2int_rz(float x) {
  if (std::isnan(x)) return 0;
  if (x >= 2147483648.0F) return std::numeric_limits<int>::max();
  if (x < -2147483648.0F) return std::numeric_limits<int>::min();
  return static_cast<int>(x);
}

namespace heddle {

// Before the C library's functions of these names, because device code stands in this namespace.
inline float rsqrtf(float x) { return static_cast<float>(1 / std::sqrt(static_cast<double>(x))); }
#define HEDDLE_REAL_FUNCTION(name) \
  inline float name##f(float x) { return static_cast<float>(std::name(static_cast<double>(x))); }
#include "shared/real_functions.def"

}  // namespace heddle

namespace heddle::ops {

inline int least(int x, int y) { return y < x ? y : x; }
inline int most(int x, int y) { return x < y ? y : x; }
inline float min_nan(float x, float y) {
  if (std::isnan(x) || std::isnan(y)) return std::numeric_limits<float>::quiet_NaN();
  return y < x ? y : x;
}
inline float max_nan(float x, float y) {
  if (std::isnan(x) || std::isnan(y)) return std::numeric_limits<float>::quiet_NaN();
  return x < y ? y : x;
}
inline float reciprocal_near(float x) { return 1 / x; }
inline float exp2_near(float x) { return std::exp2(x); }
inline float from_half(unsigned short bits) {
  const int exponent = bits >> 10 & 0x1F, mantissa = bits & 0x3FF;
  const float sign = (bits & 0x8000) != 0 ? -1.0F : 1.0F;
  if (exponent == 0) return sign * std::ldexp(static_cast<float>(mantissa), -24);
  if (exponent < 31) return sign * std::ldexp(static_cast<float>(mantissa + 1024), exponent - 25);
  return mantissa == 0 ? sign * std::numeric_limits<float>::infinity() : std::numeric_limits<float>::quiet_NaN();
}

/// A warp of one thread.
template <class T>
T from_lane(T x, int) {
  return x;
}
/// Whether two values cannot be told apart by what is computed from them.
template <class T>
bool same(T x, T y) {
  return x == y;
}
inline bool same(float x, float y) { return __float_as_uint(x) == __float_as_uint(y); }

template <int kBytes>
auto read_if(unsigned long long address, bool readable) {
  using Bits = std::conditional_t<kBytes == 8, unsigned long long, unsigned>;
  Bits bits = 0;
  if (readable) std::memcpy(&bits, reinterpret_cast<const void*>(address), kBytes);
  return bits;
}

}  // namespace heddle::ops
