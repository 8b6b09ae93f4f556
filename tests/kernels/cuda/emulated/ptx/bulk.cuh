#pragma once

#include "ptx/tma.cuh"

namespace heddle::ptx {

inline void bulk_load(Address to, const void* from, unsigned bytes, Address barrier) {
  if (to % 16 != 0 || bytes % 16 != 0 || reinterpret_cast<std::uintptr_t>(from) % 16 != 0) {
    emulated::fail("a bulk copy that is no multiple of 16 bytes");
  }
  cta().later([=] {
    std::memcpy(cta().at(to), from, bytes);
    emulated::Barrier& own = cta().barrier(barrier);
    own.bytes -= bytes;
    own.complete();
  });
}
inline void bulk_add(float* to, Address from, unsigned bytes) {
  if (from % 16 != 0 || bytes % 16 != 0 || reinterpret_cast<std::uintptr_t>(to) % 16 != 0) {
    emulated::fail("a bulk add that is no multiple of 16 bytes");
  }
  emulated::Thread* thread = &cta().own();
  ++thread->adds;
  cta().later([=] {
    for (unsigned i = 0; i < bytes / 4; ++i) {
      float x;
      std::memcpy(&x, cta().at(from) + 4 * i, 4);
      to[i] += x;
    }
    --thread->adds;
  });
}

}  // namespace heddle::ptx
