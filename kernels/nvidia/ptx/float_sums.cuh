// Sums of floats in global memory that many CTAs add to. (Tests on the host bring a file of their own under this name.)
#pragma once

namespace heddle::ptx {

#if __CUDA_ARCH__ >= 900
/// Neighbours, at an address that their bytes divide, that one instruction adds.
inline constexpr int kFloatsAdded = 4;
__device__ __forceinline__ void add_floats(float* to, const float (&x)[kFloatsAdded]) {
  asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(x[0]), "f"(x[1]), "f"(x[2]), "f"(x[3])
               : "memory");
}
#else
inline constexpr int kFloatsAdded = 1;
__device__ __forceinline__ void add_floats(float* to, const float (&x)[kFloatsAdded]) {
  asm volatile("red.global.add.f32 [%0], %1;" ::"l"(to), "f"(x[0]) : "memory");
}
#endif

}  // namespace heddle::ptx
