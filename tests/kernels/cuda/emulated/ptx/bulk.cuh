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
/// Gives each float to `take(to, x)`. Who waits for the end of a copy knows that its shared memory has been read; that
/// other CTAs see it takes as long again, or until the thread releases.
template <class Take>
void bulk_out(float* to, Address from, unsigned bytes, const Take& take) {
  if (from % 16 != 0 || bytes % 16 != 0 || reinterpret_cast<std::uintptr_t>(to) % 16 != 0) {
    emulated::fail("a bulk copy out of shared memory that is no multiple of 16 bytes");
  }
  emulated::Thread* thread = &cta().own();
  ++thread->adds;
  cta().later([=] {
    std::vector<float> floats(bytes / 4);
    std::memcpy(floats.data(), cta().at(from), bytes);
    --thread->adds;
    thread->unseen.push_back(std::make_shared<std::function<void()>>([=, floats = std::move(floats)] {
      for (std::size_t i = 0; i < floats.size(); ++i) take(to[i], floats[i]);
    }));
    cta().later([write = thread->unseen.back()] { emulated::show(*write); });
  });
}
inline void bulk_store(float* to, Address from, unsigned bytes) {
  bulk_out(to, from, bytes, [](float& to, float x) { to = x; });
}
inline void bulk_add(float* to, Address from, unsigned bytes) {
  bulk_out(to, from, bytes, [](float& to, float x) { to += x; });
}

}  // namespace heddle::ptx
