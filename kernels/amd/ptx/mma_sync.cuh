// kernels/nvidia/ptx/mma_sync.cuh for AMD: copies to shared memory, by way of registers, and stores there. They are
// done when they return.
#pragma once

#include "language/language.cuh"

namespace heddle::ptx {

/// In shared memory.
using SharedAddress = __attribute__((address_space(3))) char*;
__device__ __forceinline__ SharedAddress shared_address(char* pointer) { return (SharedAddress)pointer; }

/// kBytes (2, 4, 8 or 16) of global memory, of which the first `valid` are read and the others are 0.
template <int kBytes>
__device__ __forceinline__ void copy_async(SharedAddress to, const char* from, int valid) {
  if constexpr (kBytes >= 4) {
    if (valid >= kBytes) {
      struct alignas(kBytes) Words {
        unsigned word[kBytes / 4];
      };
      const Words words = *reinterpret_cast<const Words*>(from);
#pragma unroll
      for (int i = 0; i < kBytes / 4; ++i) {
        *(__attribute__((address_space(3))) unsigned*)(to + 4 * i) = words.word[i];
      }
      return;
    }
  }
#pragma unroll
  for (int i = 0; i < kBytes / 2; ++i) {
    unsigned short half = 0;
    if (2 * i < valid) half = *reinterpret_cast<const unsigned short*>(from + 2 * i);
    *(__attribute__((address_space(3))) unsigned short*)(to + 2 * i) = half;
  }
}
__device__ __forceinline__ void store_two(SharedAddress to, unsigned halves) {
  *(__attribute__((address_space(3))) unsigned*)to = halves;
}
/// A barrier follows, which waits for them.
__device__ __forceinline__ void await_copies() {}
__device__ __forceinline__ void commit_copies() {}
template <int kGroups>
__device__ __forceinline__ void await_copies() {}

}  // namespace heddle::ptx
