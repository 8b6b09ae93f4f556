// Copies of a thread from global to shared memory that go on while it does (cp.async).
#pragma once

#include "ptx/barrier.cuh"

namespace heddle::ptx {

/// kWidth bytes, 16, 8 or 4, which divide both addresses: the first `bytes` of them are copied, the others become zeros
/// and are not read.
template <int kWidth>
__device__ __forceinline__ void gather(Address to, unsigned long long from, int bytes) {
  if constexpr (kWidth == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(from), "n"(kWidth), "r"(bytes)
                 : "memory");
  }
}
/// Two bytes or one, which no copy of the above takes; or 0, and nothing is read.
template <int kWidth>
__device__ __forceinline__ unsigned short load_element(unsigned long long from, bool is_there) {
  unsigned short element = 0;
  asm volatile(
      "{\n"
      ".reg .pred there;\n"
      "setp.ne.u32 there, %2, 0;\n"
      "@there ld.global.u%3 %0, [%1];\n"
      "}"
      : "+h"(element)
      : "l"(from), "r"(is_there ? 1 : 0), "n"(8 * kWidth)
      : "memory");
  return element;
}
template <int kWidth>
__device__ __forceinline__ void store_element(Address to, unsigned short element) {
  asm volatile("st.shared.u%2 [%0], %1;" ::"r"(to), "h"(element), "n"(8 * kWidth) : "memory");
}
/// Those of this thread since the last such are a group.
__device__ __forceinline__ void gather_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
/// Until all but the latest kGroups groups of this thread have been written.
template <int kGroups>
__device__ __forceinline__ void gather_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kGroups) : "memory");
}

}  // namespace heddle::ptx
