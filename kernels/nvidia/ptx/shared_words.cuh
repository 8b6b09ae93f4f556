// Words of shared memory, up to four at once.
#pragma once

#include "ptx/barrier.cuh"

namespace heddle::ptx {

__device__ __forceinline__ int load_word(Address from) {
  int word;
  asm volatile("ld.shared.s32 %0, [%1];" : "=r"(word) : "r"(from) : "memory");
  return word;
}
__device__ __forceinline__ void store_word(Address to, int word) {
  asm volatile("st.shared.s32 [%0], %1;" ::"r"(to), "r"(word) : "memory");
}
/// Four, aligned to their bytes.
__device__ __forceinline__ void load_words(Address from, int (&to)[4]) {
  asm volatile("ld.shared.v4.s32 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(from)
               : "memory");
}
__device__ __forceinline__ void store_words(Address to, int first, int second, int third, int fourth) {
  asm volatile("st.shared.v4.s32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(first), "r"(second), "r"(third), "r"(fourth)
               : "memory");
}
__device__ __forceinline__ float load_float(Address from) {
  float value;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(value) : "r"(from) : "memory");
  return value;
}
/// Two or four, aligned to their bytes.
__device__ __forceinline__ void load_floats(Address from, float (&to)[2]) {
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(to[0]), "=f"(to[1]) : "r"(from) : "memory");
}
__device__ __forceinline__ void load_floats(Address from, float (&to)[4]) {
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(to[0]), "=f"(to[1]), "=f"(to[2]), "=f"(to[3])
               : "r"(from)
               : "memory");
}
__device__ __forceinline__ void store_float(Address to, float value) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(to), "f"(value) : "memory");
}
/// Four, aligned to their bytes.
__device__ __forceinline__ void store_floats(Address to, float first, float second, float third, float fourth) {
  asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(to), "f"(first), "f"(second), "f"(third), "f"(fourth)
               : "memory");
}
__device__ __forceinline__ void store_zeros(Address to) {
  asm volatile("st.shared.v4.s32 [%0], {%1, %1, %1, %1};" ::"r"(to), "r"(0) : "memory");
}

}  // namespace heddle::ptx
