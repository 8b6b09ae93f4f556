// Instructions that make halves of elements of 8 bits. (Tests on the host bring a file of their own under this name.)
#pragma once

namespace heddle::ptx {

/// The chip has an instruction for halves_of_e4m3().
#if __CUDA_ARCH__ >= 890
inline constexpr bool kHasE4m3 = true;
#else
inline constexpr bool kHasE4m3 = false;
#endif

/// Byte i of the result is byte number (kBytes >> 4 i & 7) of both words, `low` having bytes 0 to 3.
template <unsigned kBytes>
__device__ __forceinline__ unsigned permute(unsigned low, unsigned high) {
  return __byte_perm(low, high, kBytes);
}

/// Two f16 of two e4m3, exact. kHasE4m3.
__device__ __forceinline__ unsigned halves_of_e4m3(unsigned short bytes) {
  unsigned halves = 0;
#if __CUDA_ARCH__ >= 890
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(bytes));
#endif
  return halves;
}

/// Products of two f16 each; subnormal numbers count.
__device__ __forceinline__ unsigned multiply_halves(unsigned x, unsigned y) {
  unsigned products;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(products) : "r"(x), "r"(y));
  return products;
}

}  // namespace heddle::ptx
