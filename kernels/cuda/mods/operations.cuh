// The operations of mods, one function a row of src/expr/ops.def, with its edge behaviour and within its error bound.
#pragma once

namespace heddle::ops {

// i32 wraps modulo 2^32.
__device__ __forceinline__ int add(int x, int y) {
  return static_cast<int>(static_cast<unsigned>(x) + static_cast<unsigned>(y));
}
__device__ __forceinline__ int sub(int x, int y) {
  return static_cast<int>(static_cast<unsigned>(x) - static_cast<unsigned>(y));
}
__device__ __forceinline__ int mul(int x, int y) {
  return static_cast<int>(static_cast<unsigned>(x) * static_cast<unsigned>(y));
}

// Each rounded once: never contracted to a fused multiply-add.
__device__ __forceinline__ float add(float x, float y) { return __fadd_rn(x, y); }
__device__ __forceinline__ float sub(float x, float y) { return __fsub_rn(x, y); }
__device__ __forceinline__ float mul(float x, float y) { return __fmul_rn(x, y); }

}  // namespace heddle::ops
