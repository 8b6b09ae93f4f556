// How TMA reads the four tensors of a backward's main kernel.
#pragma once

#include "ptx/tma.cuh"

namespace heddle {

struct BackwardMaps {
  const ptx::TensorMap &q, &k, &v, &d_o;

  /// By one thread, before the first load. Keys are loaded first.
  __device__ __forceinline__ void prefetch() const {
    ptx::prefetch_map(k);
    ptx::prefetch_map(q);
    ptx::prefetch_map(v);
    ptx::prefetch_map(d_o);
  }
};

}  // namespace heddle
