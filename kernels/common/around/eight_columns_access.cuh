// Eight neighbours of a row in memory, whatever their type: what the kernels beside attention move at a time.
#pragma once

#include "fragments/output_elements.cuh"
#include "mods/bits.cuh"
#include "mods/captures.cuh"
#include "shared/eight_columns.h"
#include "shared/storage.h"

namespace heddle::columns {

using shared::kColumns;
using shared::StorageType;

/// An element's size and value, which is f32, or f64 where it is stored so.
template <StorageType kType>
struct Stored;
template <>
struct Stored<StorageType::f64> {
  static constexpr int kBytes = 8;
  static __device__ __forceinline__ double value(unsigned long long bits) {
    return __longlong_as_double(static_cast<long long>(bits));
  }
};
template <class Storage>
struct StoredAs {
  static constexpr int kBytes = Storage::kApart;
  static __device__ __forceinline__ float value(unsigned bits) { return Storage::value(bits); }
};
template <>
struct Stored<StorageType::f32> : StoredAs<ops::F32> {};
template <>
struct Stored<StorageType::f16> : StoredAs<ops::F16> {};
template <>
struct Stored<StorageType::bf16> : StoredAs<ops::Bf16> {};
template <>
struct Stored<StorageType::e4m3> : StoredAs<ops::E4m3> {};
template <>
struct Stored<StorageType::e5m2> : StoredAs<ops::E5m2> {};

/// Eight neighbours; those from `left` on are 0 and not read. `Real`: f64, or f32 for types that it holds.
template <StorageType kType, class Real>
__device__ __forceinline__ void load(const void* from, long long offset, bool vectorised, int left,
                                     Real (&x)[kColumns]) {
  constexpr int kBytes = Stored<kType>::kBytes;
  using Bits = ptx::Bits<kBytes>;
  const Bits* at = static_cast<const Bits*>(from) + offset;
  if (vectorised && left >= kColumns) {
    constexpr int kWords = 2 * kBytes;
    unsigned word[kWords];
    if constexpr (kWords == 2) {
      const uint2 two = *reinterpret_cast<const uint2*>(at);
      word[0] = two.x;
      word[1] = two.y;
    } else {
#pragma unroll
      for (int i = 0; i < kWords / 4; ++i) {
        const uint4 four = reinterpret_cast<const uint4*>(at)[i];
        word[4 * i] = four.x;
        word[4 * i + 1] = four.y;
        word[4 * i + 2] = four.z;
        word[4 * i + 3] = four.w;
      }
    }
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      if constexpr (kBytes == 8) {
        x[i] = Stored<kType>::value(static_cast<unsigned long long>(word[2 * i + 1]) << 32 | word[2 * i]);
      } else {
        constexpr int kOfWord = 4 / kBytes;
        x[i] = Stored<kType>::value((word[i / kOfWord] >> 8 * kBytes * (i % kOfWord)) & (~0U >> (32 - 8 * kBytes)));
      }
    }
  } else {
#pragma unroll
    for (int i = 0; i < kColumns; ++i) x[i] = i < left ? static_cast<Real>(Stored<kType>::value(at[i])) : 0;
  }
}

/// Rounds an f64 to an f32 between which and it no narrower type has a number or a tie, so that a second rounding is
/// right.
__device__ __forceinline__ float to_odd(double x) {
  const float near = __double2float_rz(x);
  return static_cast<double>(near) == x ? near : __uint_as_float(__float_as_uint(near) | 1U);
}

/// An f32 that a narrower type rounds as it would round x.
__device__ __forceinline__ float before_rounding(double x) { return to_odd(x); }
__device__ __forceinline__ float before_rounding(float x) { return x; }

/// The first `left` of eight numbers, each rounded once.
template <StorageType kType, class Real>
__device__ __forceinline__ void store(void* to, long long offset, bool vectorised, int left,
                                      const Real (&x)[kColumns]) {
  if constexpr (kType == StorageType::f64) {
    auto* at = static_cast<double*>(to) + offset;
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      if (i < left) at[i] = x[i];
    }
  } else if constexpr (kType == StorageType::f32) {
    auto* at = static_cast<float*>(to) + offset;
    if (vectorised && left >= kColumns) {
#pragma unroll
      for (int i = 0; i < kColumns; i += 4) {
        *reinterpret_cast<float4*>(at + i) = make_float4(static_cast<float>(x[i]), static_cast<float>(x[i + 1]),
                                                         static_cast<float>(x[i + 2]), static_cast<float>(x[i + 3]));
      }
    } else {
#pragma unroll
      for (int i = 0; i < kColumns; ++i) {
        if (i < left) at[i] = static_cast<float>(x[i]);
      }
    }
  } else {
    using Elements = OutputElements<kType, false>;
    auto* at = static_cast<typename Elements::One*>(to) + offset;
    typename Elements::Pair pair[kColumns / 2];
#pragma unroll
    for (int i = 0; i < kColumns / 2; ++i)
      pair[i] = Elements::pair(before_rounding(x[2 * i]), before_rounding(x[2 * i + 1]));
    if (vectorised && left >= kColumns) {
      if constexpr (sizeof(pair) == 16) {
        *reinterpret_cast<uint4*>(at) = make_uint4(pair[0], pair[1], pair[2], pair[3]);
      } else {
        *reinterpret_cast<uint2*>(at) =
            make_uint2(pair[0] | static_cast<unsigned>(pair[1]) << 16, pair[2] | static_cast<unsigned>(pair[3]) << 16);
      }
    } else {
#pragma unroll
      for (int i = 0; i < kColumns; ++i) {
        constexpr int kBits = 8 * static_cast<int>(sizeof(typename Elements::One));
        const unsigned both = pair[i / 2];
        if (i < left) at[i] = static_cast<typename Elements::One>(both >> kBits * (i % 2));
      }
    }
  }
}

}  // namespace heddle::columns
