// Four floats of global memory at a time, at addresses that 16 divides.
#pragma once

namespace heddle::ptx {

/// Reads the L2 cache, where others have written them.
__device__ __forceinline__ void load_floats(const float* from, float* to) {
  asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(to[0]), "=f"(to[1]), "=f"(to[2]), "=f"(to[3])
               : "l"(from)
               : "memory");
}
__device__ __forceinline__ void store_floats(float* to, const float* from) {
  asm volatile("st.global.cg.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(from[0]), "f"(from[1]), "f"(from[2]),
               "f"(from[3])
               : "memory");
}
__device__ __forceinline__ void store_zeros(float* to) {
  asm volatile("st.global.cg.v4.f32 [%0], {%1, %1, %1, %1};" ::"l"(to), "f"(0.0F) : "memory");
}

}  // namespace heddle::ptx
