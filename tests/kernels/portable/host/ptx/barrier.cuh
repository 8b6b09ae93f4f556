// Stands in for kernels/nvidia/ptx/barrier.cuh on the host: barriers at which threads of a CTA arrive, and for
// which the same ones wait.
#pragma once

#include "lanes.h"

namespace heddle::ptx {

using Address = unsigned;

inline void barrier_init(Address barrier, unsigned arrivals) { lanes::cta.arrivals[barrier].expected = arrivals; }
inline void barrier_init_done() {}
inline void barrier_wait(Address barrier, unsigned parity) {
  if (lanes::await_arrival(barrier, parity)) lanes::cta.own().fenced = false;
}
inline void barrier_arrive(Address barrier) { lanes::arrive_expecting(barrier, 0); }
inline void barrier_arrive_expecting(Address barrier, unsigned bytes) { lanes::arrive_expecting(barrier, bytes); }
inline void fence_for_tma() { lanes::cta.own().fenced = true; }

}  // namespace heddle::ptx
