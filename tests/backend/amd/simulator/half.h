// f16, bf16 and the 8-bit floats, one value at a time and without branches, so that loops over lanes become vector
// code.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace heddle::amd::simulator {

inline float half_to_float(std::uint32_t half) {
  const std::uint32_t sign = (half & 0x8000) << 16;
  const std::uint32_t shifted = (half & 0x7fff) << 13;
  const float scaled =
      std::bit_cast<float>(shifted) * 0x1p112f;  // the exponents' biases differ by 112; exact for denormals
  const std::uint32_t finite = std::bit_cast<std::uint32_t>(scaled);
  const std::uint32_t infinite = shifted | 0x7f800000;
  return std::bit_cast<float>((shifted >= 0x0f800000 ? infinite : finite) | sign);
}

/// To the nearest f16, ties to even.
inline std::uint32_t float_to_half(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = bits >> 16 & 0x8000;
  const std::uint32_t magnitude = bits & 0x7fffffff;
  const std::uint32_t normal = (magnitude + 0xc8000fff + (magnitude >> 13 & 1)) >> 13;
  // 0.5 has f16's smallest denormal as its unit in the last place: the addition rounds to that.
  const std::uint32_t denormal = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3f000000;
  const std::uint32_t large = magnitude > 0x7f800000 ? 0x7e00 : 0x7c00;
  const std::uint32_t finite = magnitude < 0x38800000 ? denormal : normal;
  return sign | (magnitude >= 0x477ff000 ? large : finite);
}

/// Towards zero: v_cvt_pk_rtz_f16_f32.
inline std::uint32_t float_to_half_toward_zero(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = bits >> 16 & 0x8000;
  const std::uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return sign | 0x7e00;
  if (magnitude == 0x7f800000) return sign | 0x7c00;
  if (magnitude >= 0x47800000) return sign | 0x7bff;
  if (magnitude < 0x38800000) return sign | static_cast<std::uint32_t>(std::bit_cast<float>(magnitude) * 0x1p24f);
  return sign | ((magnitude - 0x38000000) >> 13);
}

inline float bfloat_to_float(std::uint32_t half) { return std::bit_cast<float>(half << 16); }

/// To the nearest bf16, ties to even.
inline std::uint32_t float_to_bfloat(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffff) > 0x7f800000) return bits >> 16 | 0x40;
  return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

/// An 8-bit float of `exponent_bits`. `fnuz`: gfx942's kind, without negative zero and infinities, 0x80 is NaN, the
/// bias one higher. Else OCP's: e4m3 has no infinities and NaN at 0x7f, e5m2 is IEEE's.
inline float byte_to_float(std::uint32_t byte, int exponent_bits, bool fnuz) {
  const int mantissa_bits = 7 - exponent_bits;
  const std::uint32_t mantissa = byte & ((1u << mantissa_bits) - 1);
  const int exponent = static_cast<int>(byte >> mantissa_bits & ((1u << exponent_bits) - 1));
  const float sign = byte & 0x80 ? -1.0f : 1.0f;
  const int largest = (1 << exponent_bits) - 1;
  if (fnuz && byte == 0x80) return std::bit_cast<float>(0x7fc00000u);
  if (!fnuz && exponent == largest) {
    if (exponent_bits == 5) return mantissa ? std::bit_cast<float>(0x7fc00000u) : sign * HUGE_VALF;
    if (mantissa == 7) return std::bit_cast<float>(0x7fc00000u);
  }
  const int bias = (1 << (exponent_bits - 1)) - (fnuz ? 0 : 1);
  const float fraction = static_cast<float>(mantissa) / static_cast<float>(1 << mantissa_bits);
  return sign * (exponent == 0 ? std::ldexp(fraction, 1 - bias) : std::ldexp(1 + fraction, exponent - bias));
}

}  // namespace heddle::amd::simulator
