// kernels/nvidia/ptx/eight_bits.cuh for AMD. gfx12 and gfx950 have an instruction for e4m3, to f32; gfx940 to gfx942
// have one for another e4m3, whose numbers are half as large. None is taken.
#pragma once

#include "language/language.cuh"

namespace heddle::ptx {

inline constexpr bool kHasE4m3 = false;
__device__ __forceinline__ unsigned halves_of_e4m3(unsigned short) { return 0; }

/// Byte i of the result is byte number (kBytes >> 4 i & 7) of both words, `low` having bytes 0 to 3.
template <unsigned kBytes>
__device__ __forceinline__ unsigned permute(unsigned low, unsigned high) {
  constexpr unsigned kEach = (kBytes & 7) | (kBytes >> 4 & 7) << 8 | (kBytes >> 8 & 7) << 16 | (kBytes >> 12 & 7) << 24;
  return __builtin_amdgcn_perm(high, low, kEach);
}

/// Products of two f16 each; subnormal numbers count.
__device__ __forceinline__ unsigned multiply_halves(unsigned x, unsigned y) {
  using Half2 = _Float16 __attribute__((ext_vector_type(2)));
  return __builtin_bit_cast(unsigned, __builtin_bit_cast(Half2, x) * __builtin_bit_cast(Half2, y));
}

}  // namespace heddle::ptx
