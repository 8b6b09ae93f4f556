// Stands in for kernels/nvidia/ptx/eight_bits.cuh on the host. __CUDA_ARCH__ is that of the chip that
// is planned for; undefined: no kernel of 8 bits is compiled.
#pragma once

#include <bit>
#include <cmath>
#include <limits>

#include "mods/instructions.cuh"

namespace heddle::ptx {

#ifdef __CUDA_ARCH__
inline constexpr bool kHasE4m3 = __CUDA_ARCH__ >= 890;
#else
inline constexpr bool kHasE4m3 = false;
#endif

template <unsigned kBytes>
unsigned permute(unsigned low, unsigned high) {
  const unsigned long long both = static_cast<unsigned long long>(high) << 32 | low;
  unsigned result = 0;
  for (int i = 0; i < 4; ++i) result |= static_cast<unsigned>(both >> (kBytes >> 4 * i & 7) * 8 & 255) << 8 * i;
  return result;
}

inline unsigned half_bits_of(float x) { return std::bit_cast<unsigned short>(static_cast<_Float16>(x)); }

/// By the definition of the type.
inline float value_of_e4m3(unsigned byte) {
  const int exponent = static_cast<int>(byte >> 3 & 15), mantissa = static_cast<int>(byte & 7);
  float x = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -9)
                          : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
  if ((byte & 127) == 127) x = std::numeric_limits<float>::quiet_NaN();
  return byte >> 7 != 0 ? -x : x;
}
inline unsigned halves_of_e4m3(unsigned short bytes) {
  return half_bits_of(value_of_e4m3(bytes >> 8)) << 16 | half_bits_of(value_of_e4m3(bytes & 255));
}

inline unsigned multiply_halves(unsigned x, unsigned y) {
  const auto half = [](unsigned bits) {
    return static_cast<float>(std::bit_cast<_Float16>(static_cast<unsigned short>(bits)));
  };
  return half_bits_of(half(x >> 16) * half(y >> 16)) << 16 | half_bits_of(half(x) * half(y));
}

}  // namespace heddle::ptx
