// Elements of 8 bits become f16, which holds both types exactly: subnormal numbers, infinities and NaN, too.
#pragma once

#include "ptx/eight_bits.cuh"
#include "shared/storage.h"

namespace heddle::portable {

/// Two words of halves.
struct Halves {
  unsigned low, high;
};

/// e4m3 without an instruction for it. Exponent and mantissa of e4m3, moved to where f16 has them, are 2^-8 of the
/// number. Its only NaN has all of those bits; one bit more makes it f16's.
__device__ __forceinline__ Halves halves_of_e4m3_bits(unsigned bytes) {
  constexpr unsigned kMagnitudes = 0x7f7f7f7f, kTwoTo8 = 0x5c005c00, kSigns = 0x80008000;
  const unsigned magnitudes = bytes & kMagnitudes;
  const unsigned with_nan = magnitudes | ((magnitudes + 0x01010101) & ~kMagnitudes);
  const auto halves = [&](unsigned to, unsigned signs) {
    return ptx::multiply_halves(to >> 1 | (signs & kSigns), kTwoTo8);
  };
  return {halves(ptx::permute<0x1404>(with_nan, 0), ptx::permute<0x1404>(bytes, 0)),
          halves(ptx::permute<0x3424>(with_nan, 0), ptx::permute<0x3424>(bytes, 0))};
}

/// Bytes 0 and 1 become `low`, and bytes 2 and 3 `high`.
template <shared::Fp8 kType>
__device__ __forceinline__ Halves halves_of_neighbours(unsigned bytes) {
  if constexpr (kType == shared::Fp8::e5m2) {
    return {ptx::permute<0x1404>(bytes, 0), ptx::permute<0x3424>(bytes, 0)};
  } else if constexpr (ptx::kHasE4m3) {
    return {ptx::halves_of_e4m3(static_cast<unsigned short>(bytes)),
            ptx::halves_of_e4m3(static_cast<unsigned short>(bytes >> 16))};
  } else {
    return halves_of_e4m3_bits(bytes);
  }
}
/// Bytes 0 and 2 become `low`, and bytes 1 and 3 `high`.
template <shared::Fp8 kType>
__device__ __forceinline__ Halves halves_of_columns(unsigned bytes) {
  if constexpr (kType == shared::Fp8::e5m2) {
    return {ptx::permute<0x2404>(bytes, 0), ptx::permute<0x3414>(bytes, 0)};
  } else {
    return halves_of_neighbours<kType>(ptx::permute<0x3120>(bytes, 0));
  }
}

}  // namespace heddle::portable
