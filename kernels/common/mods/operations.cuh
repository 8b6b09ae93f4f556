// The operations of mods, one function a row of src/expr/ops.def, with its edge behaviour and within its error bound.
// To be compiled without -use_fast_math and without -ftz=true: subnormal numbers count.
#pragma once

#include "mods/instructions.cuh"
#include "mods/pow.cuh"
#include "shared/philox.h"

namespace heddle::ops {

// ---- i32: wraps modulo 2^32; division by 0 gives 0

__device__ __forceinline__ int wrapped(unsigned x) { return static_cast<int>(x); }
__device__ __forceinline__ int add(int x, int y) {
  return wrapped(static_cast<unsigned>(x) + static_cast<unsigned>(y));
}
__device__ __forceinline__ int sub(int x, int y) {
  return wrapped(static_cast<unsigned>(x) - static_cast<unsigned>(y));
}
__device__ __forceinline__ int mul(int x, int y) {
  return wrapped(static_cast<unsigned>(x) * static_cast<unsigned>(y));
}
__device__ __forceinline__ int neg(int x) { return wrapped(0U - static_cast<unsigned>(x)); }
__device__ __forceinline__ int abs(int x) { return x < 0 ? neg(x) : x; }
__device__ __forceinline__ int min(int x, int y) { return least(x, y); }
__device__ __forceinline__ int max(int x, int y) { return most(x, y); }
/// Toward minus infinity. A divisor of -1 stands apart: INT_MIN / -1 is no int.
__device__ __forceinline__ int floor_div(int x, int y) {
  if (y == 0) return 0;
  if (y == -1) return neg(x);
  const int quotient = x / y, remainder = x - quotient * y;
  return remainder != 0 && (remainder < 0) != (y < 0) ? quotient - 1 : quotient;
}
/// Has the sign of the divisor.
__device__ __forceinline__ int mod(int x, int y) {
  if (y == 0 || y == -1) return 0;
  const int remainder = x % y;
  return remainder != 0 && (remainder < 0) != (y < 0) ? remainder + y : remainder;
}
/// By 2^kBits.
template <int kBits>
__device__ __forceinline__ int floor_div_power(int x) {
  return x >> kBits;
}
template <int kBits>
__device__ __forceinline__ int mod_power(int x) {
  return x & ((1 << kBits) - 1);
}

__device__ __forceinline__ int sign(int x) { return (x > 0 ? 1 : 0) - (x < 0 ? 1 : 0); }

__device__ __forceinline__ int bit_and(int x, int y) { return x & y; }
__device__ __forceinline__ int bit_or(int x, int y) { return x | y; }
__device__ __forceinline__ int bit_xor(int x, int y) { return x ^ y; }
__device__ __forceinline__ int bit_not(int x) { return ~x; }
/// Counts outside 0 to 31: 0, and the sign.
__device__ __forceinline__ int shift_left(int x, int y) {
  const unsigned count = static_cast<unsigned>(y);
  return count > 31U ? 0 : wrapped(static_cast<unsigned>(x) << count);
}
__device__ __forceinline__ int shift_right(int x, int y) {
  const unsigned count = static_cast<unsigned>(y);
  return x >> (count > 31U ? 31U : count);
}

// ---- f32: each operation rounded once, never contracted to a fused multiply-add

__device__ __forceinline__ float add(float x, float y) { return __fadd_rn(x, y); }
__device__ __forceinline__ float sub(float x, float y) { return __fsub_rn(x, y); }
__device__ __forceinline__ float mul(float x, float y) { return __fmul_rn(x, y); }
__device__ __forceinline__ float div(float x, float y) { return __fdiv_rn(x, y); }
__device__ __forceinline__ float floor(float x) { return floorf(x); }
__device__ __forceinline__ float floor_div(float x, float y) { return floorf(__fdiv_rn(x, y)); }
/// The remainder of x after whole multiples of y, moved by y to y's sign.
__device__ __forceinline__ float mod(float x, float y) {
  const float remainder = fmodf(x, y);
  if (remainder == 0) return copysignf(0.0F, y);
  return (remainder < 0) != (y < 0) ? __fadd_rn(remainder, y) : remainder;
}
__device__ __forceinline__ float neg(float x) { return -x; }
__device__ __forceinline__ float abs(float x) { return fabsf(x); }
__device__ __forceinline__ float min(float x, float y) { return min_nan(x, y); }
__device__ __forceinline__ float max(float x, float y) { return max_nan(x, y); }
__device__ __forceinline__ float ceil(float x) { return ceilf(x); }
__device__ __forceinline__ float round(float x) { return rintf(x); }
__device__ __forceinline__ float trunc(float x) { return truncf(x); }
__device__ __forceinline__ float sign(float x) { return x > 0 ? 1.0F : x < 0 ? -1.0F : x; }
__device__ __forceinline__ float sqrt(float x) { return __fsqrt_rn(x); }

// The compiler's own functions. (pow: mods/pow.cuh)
#define HEDDLE_REAL_FUNCTION(name) \
  __device__ __forceinline__ float name(float x) { return name##f(x); }
#include "shared/real_functions.def"
__device__ __forceinline__ float rsqrt(float x) { return rsqrtf(x); }  // to 2 ulp
/// 1 / (1 + e^-x), of whose two forms each side takes the one that keeps small results exact.
__device__ __forceinline__ float sigmoid(float x) {
  const float small = expf(-fabsf(x));
  return __fdiv_rn(x < 0 ? small : 1.0F, __fadd_rn(1.0F, small));
}

// ---- comparisons (false with NaN, ne true), logic, choice, casts

template <class T>
__device__ __forceinline__ bool lt(T x, T y) {
  return x < y;
}
template <class T>
__device__ __forceinline__ bool le(T x, T y) {
  return x <= y;
}
template <class T>
__device__ __forceinline__ bool gt(T x, T y) {
  return x > y;
}
template <class T>
__device__ __forceinline__ bool ge(T x, T y) {
  return x >= y;
}
template <class T>
__device__ __forceinline__ bool eq(T x, T y) {
  return x == y;
}
template <class T>
__device__ __forceinline__ bool ne(T x, T y) {
  return x != y;
}

__device__ __forceinline__ bool isnan(float x) { return x != x; }
__device__ __forceinline__ bool isinf(float x) { return fabsf(x) == __uint_as_float(0x7F800000U); }

__device__ __forceinline__ bool logical_and(bool x, bool y) { return x && y; }
__device__ __forceinline__ bool logical_or(bool x, bool y) { return x || y; }
__device__ __forceinline__ bool logical_xor(bool x, bool y) { return x != y; }
__device__ __forceinline__ bool logical_not(bool x) { return !x; }
template <class T>
__device__ __forceinline__ T where(bool condition, T yes, T no) {
  return condition ? yes : no;
}

__device__ __forceinline__ float to_f32(int x) { return __int2float_rn(x); }
__device__ __forceinline__ float to_f32(bool x) { return x ? 1.0F : 0.0F; }
/// Truncates, saturates, NaN gives 0: what the instruction does.
__device__ __forceinline__ int to_i32(float x) { return __float2int_rz(x); }
__device__ __forceinline__ int to_i32(bool x) { return x ? 1 : 0; }

// ---- draws, and params by their words

__device__ __forceinline__ float random_uniform(int seed, int b, int h, int q_idx, int kv_idx) {
  const shared::PhiloxWords words =
      shared::random_uniform_words(static_cast<unsigned>(seed), static_cast<unsigned>(b), static_cast<unsigned>(h),
                                   static_cast<unsigned>(q_idx), static_cast<unsigned>(kv_idx));
  // Chosen by comparisons: an index would put the words in memory.
  const unsigned pair = shared::random_uniform_pair_of(static_cast<unsigned>(kv_idx));
  const auto word = [&words](unsigned i) {
#ifdef __HIP__  // by values: of a choice between places clang makes one load, from memory
    const unsigned even = where((i & 2U) == 0, words.word[0], words.word[2]);
    const unsigned odd = where((i & 2U) == 0, words.word[1], words.word[3]);
#else
    const unsigned even = (i & 2U) == 0 ? words.word[0] : words.word[2];
    const unsigned odd = (i & 2U) == 0 ? words.word[1] : words.word[3];
#endif
    return (i & 1U) == 0 ? even : odd;
  };
  // Its pair stands first or fifth where its own word, and the next, do.
  const shared::PhiloxWords turned = {{word(pair), word(pair + 1), 0, 0}};
  return shared::random_uniform_value(
      shared::random_uniform_bits(shared::random_uniform_pair(turned, pair & 4U), static_cast<unsigned>(kv_idx)));
}

__device__ __forceinline__ float f32_param(unsigned word) { return __uint_as_float(word); }
__device__ __forceinline__ int i32_param(unsigned word) { return static_cast<int>(word); }
__device__ __forceinline__ bool boolean_param(unsigned word) { return word != 0; }

}  // namespace heddle::ops
