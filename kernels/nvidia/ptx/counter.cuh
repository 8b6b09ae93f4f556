// A word of global memory that the CTAs of a grid count up together.
#pragma once

namespace heddle::ptx {

/// Adds one; returns the count before.
__device__ __forceinline__ unsigned count_up(unsigned* word) {
  unsigned before;
  asm volatile("atom.relaxed.gpu.global.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(word) : "memory");
  return before;
}

/// Adds one; returns the count before. What the thread, and those that met it at a barrier before, wrote is seen by
/// every thread that counts itself later, and by those that meet it at a barrier then.
__device__ __forceinline__ unsigned arrive(unsigned* word) {
  unsigned before;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(word) : "memory");
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

/// Returns once the word is at least `count`. What others did before they added to it is seen from here on.
__device__ __forceinline__ void await_count(const unsigned* word, unsigned count) {
  unsigned now;
  do {
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(word) : "memory");
  } while (now < count);
}
/// Makes the thread's stores to global memory before seen by bulk operations behind, and the other way round.
__device__ __forceinline__ void fence_for_bulk() { asm volatile("fence.proxy.async.global;" ::: "memory"); }
/// Threads that await the count see all that this thread did before, and all that it has waited for, bulk operations
/// among them: the end of these alone lets no other thread see them, and a relaxed count came before some adds.
__device__ __forceinline__ void add_count(unsigned* word, unsigned count) {
  asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(word), "r"(count) : "memory");
}

}  // namespace heddle::ptx
