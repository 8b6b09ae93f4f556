// CTAs count themselves at a word in memory.
#pragma once

namespace heddle::ptx {

/// Adds 1 and returns the number before. What the thread, and those that met it at a barrier before, wrote is seen by
/// every thread that counts itself later, and by those that meet it at a barrier then.
__device__ __forceinline__ unsigned long long arrive(unsigned long long* word) {
  unsigned long long before;
  asm volatile("atom.acq_rel.gpu.global.add.u64 %0, [%1], 1;" : "=l"(before) : "l"(word) : "memory");
  return before;
}

}  // namespace heddle::ptx
