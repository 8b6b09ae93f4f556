#pragma once

#include <cmath>
#include <limits>

#include "mods/instructions.cuh"

namespace heddle::ptx {

inline constexpr float kLn2 = 0.693147180559945309F, kLog2E = 1.44269504088896341F;
inline float infinity() { return std::numeric_limits<float>::infinity(); }
/// Subnormal results are 0.
inline float exp2_fast(float x) {
  const float y = static_cast<float>(std::exp2(static_cast<double>(x)));
  return y < std::numeric_limits<float>::min() ? 0.0F : y;
}
inline float reciprocal(float x) { return 1.0F / x; }
inline float log2_fast(float x) { return std::log2(x); }

/// To nearest even.
inline unsigned round_bf16(float x) {
  const unsigned bits = __float_as_uint(x);
  if (x != x) return 0x7fff;
  return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
inline unsigned round_f16(float x) {
  const _Float16 half = static_cast<_Float16>(x);
  unsigned short bits;
  std::memcpy(&bits, &half, 2);
  return bits;
}
template <bool kF16>
unsigned pack(float low, float high) {
  return kF16 ? round_f16(low) | round_f16(high) << 16 : round_bf16(low) | round_bf16(high) << 16;
}
inline float from_storage(bool f16, unsigned short bits) {
  return f16 ? ops::from_half(bits) : __uint_as_float(static_cast<unsigned>(bits) << 16);
}

}  // namespace heddle::ptx
