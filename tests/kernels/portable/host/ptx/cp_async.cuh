// Stands in for kernels/nvidia/ptx/cp_async.cuh on the host: what fragments need of it.
#pragma once

#include "ptx/barrier.cuh"

namespace heddle::ptx {

inline void gather(Address to, unsigned long long from, int bytes) {
  if (to % 16 != 0 || from % 16 != 0) lanes::fail("cp.async of an address that 16 does not divide");
  lanes::ask({lanes::cta.memory + to, reinterpret_cast<const char*>(from), 16, bytes});
}
inline void arrive_behind_copies(Address barrier) { lanes::arrive_behind_copies(barrier); }

}  // namespace heddle::ptx
