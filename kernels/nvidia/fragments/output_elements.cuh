// Elements of o in memory, by its type. Rounded once, to nearest even; what overflows is infinity, or NaN where the
// type has none: conversions of fp8 saturate, so theirs is put in afterwards.
#pragma once

#include "fragments/output_elements_of_halves.cuh"
#include "ptx/math.cuh"
#include "shared/storage.h"

namespace heddle {

/// e4m3 ends at 448 and e5m2 at 57344; halfway to what would come next is rounded to the even one of the two, down and
/// up.
template <StorageType kType>
__device__ __forceinline__ unsigned fp8_special(float x, unsigned rounded) {
  const unsigned sign = (__float_as_uint(x) >> 24) & 0x80U;
  if constexpr (kType == StorageType::e4m3) {
    return fabsf(x) <= 464.0F ? rounded : sign | 0x7fU;
  } else {
    const unsigned special = isnan(x) ? 0x7eU : 0x7cU;
    return fabsf(x) < 61440.0F ? rounded : sign | special;
  }
}

template <StorageType kType, bool kF16>
struct OutputElements {  // e4m3, e5m2
  using One = unsigned char;
  using Pair = unsigned short;
  static __device__ __forceinline__ Pair pair(float x, float y) {
    unsigned short both;
    if constexpr (kType == StorageType::e4m3) {
      asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(both) : "f"(y), "f"(x));
    } else {
      asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(both) : "f"(y), "f"(x));
    }
    return static_cast<Pair>(fp8_special<kType>(x, both & 0xffU) |
                             fp8_special<kType>(y, static_cast<unsigned>(both) >> 8) << 8);
  }
  static __device__ __forceinline__ One first(Pair pair) { return static_cast<One>(pair); }
  static __device__ __forceinline__ One second(Pair pair) { return static_cast<One>(pair >> 8); }
};

template <bool kF16>
struct OutputElements<StorageType::f32, kF16> {
  using One = float;
  using Pair = float2;
  static __device__ __forceinline__ Pair pair(float x, float y) { return make_float2(x, y); }
  static __device__ __forceinline__ One first(Pair pair) { return pair.x; }
  static __device__ __forceinline__ One second(Pair pair) { return pair.y; }
};

template <bool kF16>
struct OutputElements<StorageType::f64, kF16> {
  using One = double;
  using Pair = double2;
  static __device__ __forceinline__ Pair pair(float x, float y) { return make_double2(x, y); }
  static __device__ __forceinline__ One first(Pair pair) { return pair.x; }
  static __device__ __forceinline__ One second(Pair pair) { return pair.y; }
};

}  // namespace heddle
