#pragma once

#include "ptx/barrier.cuh"

namespace heddle::ptx {

inline int cluster_rank() { return cta().rank(); }
inline Address address_in(int rank, Address own) {
  return (own & emulated::Cta::kOffset) | static_cast<Address>(rank) << emulated::Cta::kRankBit;
}
inline void cluster_barrier() {
  cta().meet(cta().cluster(), [] {});
}
inline void barrier_arrive_there(Address barrier) { barrier_arrive(barrier); }
inline void copy_there(Address to, Address from, unsigned bytes, Address barrier) {
  if (to % 16 != 0 || from % 16 != 0 || bytes % 16 != 0) {
    emulated::fail("a copy between CTAs that is no multiple of 16 bytes");
  }
  cta().later([=] {
    std::memcpy(cta().at(to), cta().at(from), bytes);
    emulated::Barrier& there = cta().barrier(barrier);
    there.bytes -= bytes;
    there.complete();
  });
}

}  // namespace heddle::ptx
