#pragma once

#include "mods/instructions.cuh"

namespace heddle::ptx {

using Address = unsigned;
using emulated::cta;

inline Address address_of(const void* shared) { return cta().address_of(static_cast<const char*>(shared)); }
inline void barrier_init(Address barrier, unsigned arrivals) {
  cta().barrier(barrier) = {static_cast<int>(arrivals), static_cast<int>(arrivals), 0, 0};
}
inline void barrier_init_done() {}
inline void barrier_arrive(Address barrier) {
  emulated::Barrier& own = cta().barrier(barrier);
  if (own.count == 0) emulated::fail("an arrival at a barrier that was not made");
  --own.pending;
  own.complete();
  cta().progress();
}
inline void barrier_arrive_by_warp(Address barrier, int lane) {
  __syncwarp();
  if (lane == 0) barrier_arrive(barrier);
}
inline void barrier_arrive_by_warp(Address barrier) {
  barrier_arrive_by_warp(barrier, static_cast<int>(threadIdx.x & 31));
}
inline void barrier_arrive_expecting(Address barrier, unsigned bytes) {
  cta().barrier(barrier).bytes += bytes;
  barrier_arrive(barrier);
}
inline void barrier_wait(Address barrier, unsigned parity) {
  if (cta().barrier(barrier).count == 0) emulated::fail("a wait for a barrier that was not made");
  cta().wait_until([=] { return cta().barrier(barrier).phase != parity; });
}

inline void barrier_wait(Address first, unsigned first_parity, Address second, unsigned second_parity, Address third,
                         unsigned third_parity, Address fourth, unsigned fourth_parity) {
  barrier_wait(first, first_parity);
  barrier_wait(second, second_parity);
  barrier_wait(third, third_parity);
  barrier_wait(fourth, fourth_parity);
}

struct Ring {
  int slot = 0;
  unsigned parity;
  explicit Ring(unsigned first_parity) : parity(first_parity) {}
  void advance(int slots) {
    if (++slot == slots) {
      slot = 0;
      parity ^= 1;
    }
  }
};

struct PackedRing {
  unsigned word;
  explicit PackedRing(unsigned first_parity) : word(first_parity) {}
  void advance(int slots) {
    word += 2;
    if (word >= 2U * slots) word = (word & 1) ^ 1;
  }
};
inline int slot_of(const PackedRing& ring) { return static_cast<int>(ring.word >> 1); }
inline unsigned parity_of(const PackedRing& ring) { return ring.word & 1; }

inline void named_barrier(int id, int threads) {
  emulated::Meeting& meeting = cta().named(id);
  meeting.members = threads;
  cta().meet(meeting, [] {});
}

inline void fence_for_tma() {}
template <int>
void give_registers() {}
template <int>
void take_registers() {}

}  // namespace heddle::ptx
