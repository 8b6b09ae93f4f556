// A word of global memory that the CTAs of a grid count up together.
#pragma once

namespace heddle::ptx {

/// What it was.
__device__ __forceinline__ unsigned count_up(unsigned* word) {
  unsigned before;
  asm volatile("atom.relaxed.gpu.global.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(word) : "memory");
  return before;
}

}  // namespace heddle::ptx
