// A word of global memory that the CTAs of a grid count up together.
#pragma once

namespace heddle::ptx {

/// Adds one; returns the count before.
__device__ __forceinline__ unsigned count_up(unsigned* word) {
  unsigned before;
  asm volatile("atom.relaxed.gpu.global.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(word) : "memory");
  return before;
}

/// Returns once the word is `turn`. What others did before they passed it on is seen from here on, by bulk operations,
/// too.
__device__ __forceinline__ void wait_for_turn(const unsigned* word, unsigned turn) {
  unsigned now;
  do {
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(word) : "memory");
  } while (now != turn);
  asm volatile("fence.proxy.async.global;" ::: "memory");
}
/// Behind bulk operations that have ended.
__device__ __forceinline__ void pass_turn(unsigned* word) {
  asm volatile("fence.proxy.async.global;" ::: "memory");
  asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(word) : "memory");
}

}  // namespace heddle::ptx
