// Arithmetic that has an instruction of its own.
#pragma once

namespace heddle::ptx {

inline constexpr float kLn2 = 0.693147180559945309F, kLog2E = 1.44269504088896341F;

__device__ __forceinline__ float infinity() { return __int_as_float(0x7f800000); }

/// 2^x to 2 ulp; subnormal results are 0.
__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// 1 / x to 1 ulp.
__device__ __forceinline__ float reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// log2(x) to 2^-22; -inf of 0 and of subnormal numbers.
__device__ __forceinline__ float log2_fast(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// Two floats rounded to the storage type, `low` in the lower half.
template <bool kF16>
__device__ __forceinline__ unsigned pack(float low, float high) {
  unsigned both;
  if constexpr (kF16) {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  }
  return both;
}

/// Four floats rounded to 8 bits, `first` in the lowest ones. Larger magnitudes become the largest finite number.
template <bool kE5m2>
__device__ __forceinline__ unsigned pack(float first, float second, float third, float fourth) {
  unsigned all;
  if constexpr (kE5m2) {
    asm("{\n"
        ".reg .b16 low, high;\n"
        "cvt.rn.satfinite.e5m2x2.f32 low, %2, %1;\n"
        "cvt.rn.satfinite.e5m2x2.f32 high, %4, %3;\n"
        "mov.b32 %0, {low, high};\n"
        "}"
        : "=r"(all)
        : "f"(first), "f"(second), "f"(third), "f"(fourth));
  } else {
    asm("{\n"
        ".reg .b16 low, high;\n"
        "cvt.rn.satfinite.e4m3x2.f32 low, %2, %1;\n"
        "cvt.rn.satfinite.e4m3x2.f32 high, %4, %3;\n"
        "mov.b32 %0, {low, high};\n"
        "}"
        : "=r"(all)
        : "f"(first), "f"(second), "f"(third), "f"(fourth));
  }
  return all;
}

/// The maximum of numbers that are not negative: they compare as integers, three at a time.
__device__ __forceinline__ float max_positive(float x, float y, float z) {
  return __uint_as_float(__vimax3_u32(__float_as_uint(x), __float_as_uint(y), __float_as_uint(z)));
}

}  // namespace heddle::ptx
