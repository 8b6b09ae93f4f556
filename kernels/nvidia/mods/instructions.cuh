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

/// The least and the most of two integers. Of `y < x ? y : x` CUDA 13.0 makes wrong code: min(min(x, -y), z) becomes
/// one instruction for the least of x, y and z, without the sign (docs/notes/device_mods.md). Written so, an operand
/// with a sign keeps it from that instruction.
__device__ __forceinline__ int least(int x, int y) {
  int result;
  asm("{.reg .pred p; setp.lt.s32 p, %2, %1; selp.b32 %0, %2, %1, p;}" : "=r"(result) : "r"(x), "r"(y));
  return result;
}
__device__ __forceinline__ int most(int x, int y) {
  int result;
  asm("{.reg .pred p; setp.lt.s32 p, %1, %2; selp.b32 %0, %2, %1, p;}" : "=r"(result) : "r"(x), "r"(y));
  return result;
}

/// 1 / x to 1 ulp, but 0 for a subnormal result and infinity for a subnormal x.
__device__ __forceinline__ float reciprocal_near(float x) {
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

/// 2^x to 2 ulp; subnormal results are 0.
__device__ __forceinline__ float exp2_near(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

/// The number that the bits of an f16 mean.
__device__ __forceinline__ float from_half(unsigned short bits) {
  float result;
  asm("cvt.f32.f16 %0, %1;" : "=f"(result) : "h"(bits));
  return result;
}

/// Another thread's value; all threads of the warp take part.
template <class T>
__device__ __forceinline__ T from_lane(T x, int lane) {
  return __shfl_sync(~0U, x, lane);
}
__device__ __forceinline__ bool from_lane(bool x, int lane) { return __shfl_sync(~0U, x ? 1 : 0, lane) != 0; }

/// Whether no computation tells the two values apart.
template <class T>
__device__ __forceinline__ bool same(T x, T y) {
  return x == y;
}
__device__ __forceinline__ bool same(float x, float y) { return __float_as_uint(x) == __float_as_uint(y); }

/// Reads kBytes of memory that does not change while the kernel runs. If not `readable`, gives 0 without an access. One
/// predicated instruction: a branch at every load takes a masked kernel hundreds of registers.
template <int kBytes>
__device__ __forceinline__ auto read_if(unsigned long long address, bool readable) {
  unsigned bits = 0;
  const int on = readable ? 1 : 0;
  if constexpr (kBytes == 1) {
    asm("{.reg .pred p; setp.ne.s32 p, %2, 0; @p ld.global.nc.u8 %0, [%1];}" : "+r"(bits) : "l"(address), "r"(on));
  } else if constexpr (kBytes == 2) {
    asm("{.reg .pred p; setp.ne.s32 p, %2, 0; @p ld.global.nc.u16 %0, [%1];}" : "+r"(bits) : "l"(address), "r"(on));
  } else if constexpr (kBytes == 4) {
    asm("{.reg .pred p; setp.ne.s32 p, %2, 0; @p ld.global.nc.u32 %0, [%1];}" : "+r"(bits) : "l"(address), "r"(on));
  } else {
    unsigned long long wide = 0;
    asm("{.reg .pred p; setp.ne.s32 p, %2, 0; @p ld.global.nc.u64 %0, [%1];}" : "+l"(wide) : "l"(address), "r"(on));
    return wide;
  }
  if constexpr (kBytes < 8) return bits;
}

}  // namespace heddle::ops
