// Bit patterns of the small floating types to float and back, inline for loops over elements.
#pragma once

#include <bit>
#include <cstdint>

#include "heddle/dtype.h"

namespace heddle::base {

/// A binary floating type of 1 + exponent_bits + mantissa_bits bits. Without an infinity ("fn") the all-ones pattern is
/// the only NaN and the rest of the top binade are numbers.
struct SmallFormat {
  int exponent_bits;
  int mantissa_bits;
  bool has_infinity;

  constexpr int bias() const { return (1 << (exponent_bits - 1)) - 1; }
  constexpr std::uint32_t sign_bit() const { return 1u << (exponent_bits + mantissa_bits); }
  constexpr std::uint32_t infinity() const { return ((1u << exponent_bits) - 1u) << mantissa_bits; }
  constexpr std::uint32_t quiet_nan() const {
    return has_infinity ? infinity() | (1u << (mantissa_bits - 1)) : sign_bit() - 1u;
  }
  constexpr std::uint32_t overflow() const { return has_infinity ? infinity() : quiet_nan(); }
};

inline constexpr SmallFormat kF16{5, 10, true};
inline constexpr SmallFormat kBf16{8, 7, true};
inline constexpr SmallFormat kE4m3{4, 3, false};
inline constexpr SmallFormat kE5m2{5, 2, true};

/// Exact; a NaN keeps its sign and payload and comes out quiet.
template <SmallFormat F>
float widen(std::uint32_t bits) {
  const std::uint32_t sign = (bits & F.sign_bit()) != 0 ? 0x80000000u : 0u;
  const std::uint32_t magnitude = bits & (F.sign_bit() - 1u);
  constexpr int kShift = 23 - F.mantissa_bits;
  if (F.has_infinity ? magnitude > F.infinity() : magnitude == F.quiet_nan()) {
    return std::bit_cast<float>(sign | 0x7fc00000u | ((magnitude << kShift) & 0x007fffffu));
  }
  if (F.has_infinity && magnitude == F.infinity()) return std::bit_cast<float>(sign | 0x7f800000u);
  if constexpr (F.exponent_bits == 8) {
    return std::bit_cast<float>(sign | (magnitude << kShift));
  } else if (magnitude >= (1u << F.mantissa_bits)) {
    constexpr std::uint32_t kRebias = static_cast<std::uint32_t>(127 - F.bias()) << 23;
    return std::bit_cast<float>(sign | ((magnitude << kShift) + kRebias));
  } else {
    constexpr float kQuantum =
        std::bit_cast<float>(static_cast<std::uint32_t>(127 + 1 - F.bias() - F.mantissa_bits) << 23);
    const float value = static_cast<float>(magnitude) * kQuantum;
    return sign != 0 ? -value : value;
  }
}

/// Round to nearest even, in integers and in one step: every format's subnormals and its overflow follow from the same
/// lines, because a significand that is carried over its binade increments the exponent field.
template <SmallFormat F>
std::uint32_t narrow(double x) {
  const std::uint64_t bits = std::bit_cast<std::uint64_t>(x);
  const std::uint32_t sign = (bits >> 63) != 0 ? F.sign_bit() : 0u;
  const std::uint64_t magnitude = bits & ~(std::uint64_t{1} << 63);
  constexpr std::uint64_t kInfinity = std::uint64_t{0x7ff} << 52;
  if (magnitude > kInfinity) return sign | F.quiet_nan();
  if (magnitude == kInfinity) return sign | F.overflow();

  const int exponent = static_cast<int>(magnitude >> 52) - 1023;
  constexpr int kMinExponent = 1 - F.bias();
  const int quantum_exponent = exponent < kMinExponent ? kMinExponent : exponent;
  const int shift = 52 - F.mantissa_bits + (quantum_exponent - exponent);
  if (shift > 53) return sign;  // below half of the smallest subnormal, double's own subnormals among them
  const std::uint64_t significand = (magnitude & ((std::uint64_t{1} << 52) - 1)) | (std::uint64_t{1} << 52);
  const std::uint64_t half = std::uint64_t{1} << (shift - 1);
  const std::uint64_t kept = significand >> shift;
  const std::uint64_t rest = significand & (2 * half - 1);
  const std::uint64_t rounded = kept + ((rest > half || (rest == half && (kept & 1) != 0)) ? 1u : 0u);
  const std::uint64_t result =
      (static_cast<std::uint64_t>(quantum_exponent - kMinExponent) << F.mantissa_bits) + rounded;
  return sign | (result >= F.overflow() ? F.overflow() : static_cast<std::uint32_t>(result));
}

}  // namespace heddle::base
