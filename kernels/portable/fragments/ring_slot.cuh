// A place in a ring of buffers.
#pragma once

namespace heddle::portable {

/// The offset in bytes of one of kCount buffers that stand kBytes apart.
template <int kCount, int kBytes>
struct RingSlot {
  int at;
  __device__ __forceinline__ void advance() { at = at == (kCount - 1) * kBytes ? 0 : at + kBytes; }
};

}  // namespace heddle::portable
