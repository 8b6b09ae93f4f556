// Elements of o of 16 bits in memory, for every vendor.
#pragma once

#include "ptx/math.cuh"
#include "shared/storage.h"

namespace heddle {

using shared::StorageType;

/// Elements of o in memory, by its type. One: an element. Pair: two neighbours of a row, at a multiple of their size.
/// pair(x, y), x first, and first(pair), second(pair).
template <StorageType kType, bool kF16>
struct OutputElements;

/// f16, bf16; or what q, k and v are.
template <bool kF16>
struct OutputHalves {
  using One = unsigned short;
  using Pair = unsigned;
  static __device__ __forceinline__ Pair pair(float x, float y) { return ptx::pack<kF16>(x, y); }
  static __device__ __forceinline__ One first(Pair pair) { return static_cast<One>(pair); }
  static __device__ __forceinline__ One second(Pair pair) { return static_cast<One>(pair >> 16); }
};
template <bool kF16>
struct OutputElements<StorageType::same, kF16> : OutputHalves<kF16> {};
template <bool kF16>
struct OutputElements<StorageType::f16, kF16> : OutputHalves<true> {};
template <bool kF16>
struct OutputElements<StorageType::bf16, kF16> : OutputHalves<false> {};

}  // namespace heddle
