// The kernels around sums of captures and params (read_sums.cuh): before the passes the sums are cleared, and after
// them the gradients are stored in their types, wherever their elements stand.
#pragma once

#include "families/backward_mma/shared/backward_mma_params.h"
#include "portable/backward_mma/row_kernels.cuh"

namespace heddle::portable {

/// By kSumThreads threads of each of params.ctas CTAs. `Real`: of the sums. `kTypes`: of the gradients.
template <class Real, StorageType... kTypes>
class StoredSums {
 public:
  __device__ __forceinline__ static void clear(const shared::MmaSumsParams& params, int cta) {
    for (long long i = first(cta); i < params.all; i += step(params)) static_cast<Real*>(params.reals)[i] = 0;
  }
  __device__ __forceinline__ static void store(const shared::MmaSumsParams& params, int cta) {
    int number = 0;
    (store_one<kTypes>(params, params.stored[number++], cta), ...);
  }

 private:
  __device__ __forceinline__ static long long first(int cta) {
    return static_cast<long long>(cta) * shared::kSumThreads + static_cast<int>(threadIdx.x);
  }
  __device__ __forceinline__ static long long step(const shared::MmaSumsParams& params) {
    return static_cast<long long>(params.ctas) * shared::kSumThreads;
  }
  template <StorageType kType>
  __device__ __forceinline__ static void store_one(const shared::MmaSumsParams& params,
                                                   const shared::MmaSumsParams::Stored& to, int cta) {
    using Element = OutputElement<kType, RoundedHalves>;
    for (long long i = first(cta); i < to.count; i += step(params)) {
      long long rest = i, offset = 0;
      for (int axis = 3; axis >= 0; --axis) {
        offset += rest % to.sum.extent[axis] * to.stride[axis];
        rest /= to.sum.extent[axis];
      }
      static_cast<typename Element::Bits*>(to.data)[offset] = Element::of(static_cast<const Real*>(to.sum.reals)[i]);
    }
  }
};

}  // namespace heddle::portable
