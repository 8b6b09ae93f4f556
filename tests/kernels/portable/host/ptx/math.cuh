// Stands in for kernels/nvidia/ptx/math.cuh where the threads of a warp are on the host (lanes.h).
#pragma once

#include <cmath>
#include <limits>

#include "lanes.h"

namespace heddle::ptx {

inline constexpr float kLn2 = 0.693147180559945309F, kLog2E = 1.44269504088896341F;

inline float infinity() { return std::numeric_limits<float>::infinity(); }
inline float flushed(float x) { return std::fabs(x) < std::numeric_limits<float>::min() ? 0 : x; }
inline float exp2_fast(float x) { return flushed(std::exp2(x)); }
inline float reciprocal(float x) { return flushed(1 / flushed(x)); }
inline float log2_fast(float x) { return std::log2(flushed(x)); }

/// To nearest even; NaN stays NaN.
template <bool kF16>
unsigned short rounded(float x) {
  if constexpr (kF16) {
    return std::bit_cast<unsigned short>(static_cast<_Float16>(x));
  } else {
    const auto bits = std::bit_cast<unsigned>(x);
    if (x != x) return 0x7fff;
    return static_cast<unsigned short>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
  }
}
template <bool kF16>
unsigned pack(float low, float high) {
  return static_cast<unsigned>(rounded<kF16>(high)) << 16 | rounded<kF16>(low);
}

}  // namespace heddle::ptx
