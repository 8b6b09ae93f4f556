// Stands in for kernels/nvidia/ptx/cp_async.cuh on the host: what fragments need of it.
#pragma once

#include "ptx/barrier.cuh"

namespace heddle::ptx {

inline void arrive_behind_copies(Address barrier) { lanes::arrive_behind_copies(barrier); }

}  // namespace heddle::ptx
