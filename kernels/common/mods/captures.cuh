// Elements of captured tensors. An element's offset is the sum of one offset an axis, so that a term which depends on
// the row alone is computed once a row. An element is then one load.
#pragma once

#include "mods/instructions.cuh"
#include "shared/mod_values.h"

namespace heddle::ops {

using shared::ModCapture;

// Storage types: the distance between elements, the bytes of one that are read, and their value.
struct F64 {
  static constexpr int kApart = 8, kRead = 8;
  static __device__ __forceinline__ float value(unsigned long long bits) {
    return __double2float_rn(__longlong_as_double(static_cast<long long>(bits)));
  }
};
/// f64 of captures if reals are f64: not rounded.
struct ExactF64 {
  static constexpr int kApart = 8, kRead = 8;
  static __device__ __forceinline__ double value(unsigned long long bits) {
    return __longlong_as_double(static_cast<long long>(bits));
  }
};
struct F32 {
  static constexpr int kApart = 4, kRead = 4;
  static __device__ __forceinline__ float value(unsigned bits) { return __uint_as_float(bits); }
};
struct F16 {
  static constexpr int kApart = 2, kRead = 2;
  static __device__ __forceinline__ float value(unsigned bits) { return from_half(static_cast<unsigned short>(bits)); }
};
struct Bf16 {
  static constexpr int kApart = 2, kRead = 2;
  static __device__ __forceinline__ float value(unsigned bits) { return __uint_as_float(bits << 16); }
};
/// The upper half of an f16.
struct E5m2 {
  static constexpr int kApart = 1, kRead = 1;
  static __device__ __forceinline__ float value(unsigned bits) {
    return from_half(static_cast<unsigned short>(bits << 8));
  }
};
/// Three bits of an f16's mantissa under four of its exponent, whose bias is 8 less; all ones are NaN.
struct E4m3 {
  static constexpr int kApart = 1, kRead = 1;
  static __device__ __forceinline__ float value(unsigned bits) {
    const unsigned magnitude = bits & 0x7FU, sign = bits & 0x80U;
    const float x = from_half(static_cast<unsigned short>(sign << 8 | magnitude << 7)) * 256.0F;
    return magnitude == 0x7FU ? __uint_as_float(0x7FC00000U) : x;
  }
};
/// The low 32 bits, of u64 too; memory is little-endian.
struct I64 {
  static constexpr int kApart = 8, kRead = 4;
  static __device__ __forceinline__ int value(unsigned bits) { return static_cast<int>(bits); }
};
struct I32 {
  static constexpr int kApart = 4, kRead = 4;
  static __device__ __forceinline__ int value(unsigned bits) { return static_cast<int>(bits); }
};
template <class Stored>
struct Narrow {
  static constexpr int kApart = sizeof(Stored), kRead = sizeof(Stored);
  static __device__ __forceinline__ int value(unsigned bits) { return static_cast<Stored>(bits); }
};
using I16 = Narrow<short>;
using U16 = Narrow<unsigned short>;
using I8 = Narrow<signed char>;
using U8 = Narrow<unsigned char>;
struct Boolean {
  static constexpr int kApart = 1, kRead = 1;
  static __device__ __forceinline__ bool value(unsigned bits) { return bits != 0; }
};

/// The offset that an index adds to an element's. Wraps where the index is far outside.
__device__ __forceinline__ long long offset(const ModCapture& capture, int axis, int index) {
  return static_cast<long long>(static_cast<unsigned long long>(static_cast<long long>(index)) *
                                static_cast<unsigned long long>(capture.stride[axis]));
}
/// offset() of the nearest index inside the tensor.
__device__ __forceinline__ long long clamped_offset(const ModCapture& capture, int axis, int index) {
  const int below = index < capture.extent[axis] ? index : capture.extent[axis] - 1;
  return offset(capture, axis, below < 0 ? 0 : below);
}
__device__ __forceinline__ bool inside(const ModCapture& capture, int axis, int index) {
  return static_cast<unsigned>(index) < static_cast<unsigned>(capture.extent[axis]);
}

/// The element at an offset; 0, and no access, where not `readable`.
template <class Storage>
__device__ __forceinline__ auto load_if(const ModCapture& capture, bool readable, long long offset) {
  // By numbers: far from the tensor there is no pointer.
  const auto address =
      reinterpret_cast<unsigned long long>(capture.data) + static_cast<unsigned long long>(offset) * Storage::kApart;
  return Storage::value(read_if<Storage::kRead>(address, readable));
}
/// The element at an offset inside the tensor; an empty tensor reads as 0.
template <class Storage, int kRank>
__device__ __forceinline__ auto load(const ModCapture& capture, long long offset) {
  bool any = true;
  for (int axis = 0; axis < kRank; ++axis) any = any && capture.extent[axis] > 0;
  return load_if<Storage>(capture, any, offset);
}

}  // namespace heddle::ops
