// Kernels of one stream that begin before the one before them has ended (programmatic dependent launch). Nothing before
// sm_90.
#pragma once

namespace heddle::ptx {

/// The kernel that follows on the stream may begin, if it was launched so.
__device__ __forceinline__ void let_next_begin() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
/// Waits until the kernel before has ended and its writes are visible. Nothing of the caller's may be read or written
/// before.
__device__ __forceinline__ void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

}  // namespace heddle::ptx
