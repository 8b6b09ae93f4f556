// The kernels around sums of captures and params (read_sums.cuh): before the passes the sums are cleared, and after
// them the gradients are stored in their types, wherever their elements stand.
#pragma once

#include "families/backward_mma/shared/backward_mma_params.h"
#include "portable/backward_mma/read_sums.cuh"
#include "portable/backward_mma/row_kernels.cuh"

namespace heddle::portable {

/// By kSumThreads threads of each of params.ctas CTAs. `Real`: of the sums. kIntegers: finite parts were added as such.
/// `kTypes`: of the gradients.
template <class Real, bool kIntegers, StorageType... kTypes>
class StoredSums {
 public:
  __device__ __forceinline__ static void clear(const shared::MmaSumsParams& params, int cta) {
    struct alignas(16) Zeros {
      unsigned x[4];
    };
    auto* const memory = reinterpret_cast<Zeros*>(params.memory);
    for (long long i = first(cta); i < params.words / 4; i += step(params)) memory[i] = {};
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
      static_cast<typename Element::Bits*>(to.data)[offset] = Element::of(element(to.sum, i));
    }
  }
  __device__ __forceinline__ static Real element(const shared::MmaSum& sum, long long i) {
    const Real real = static_cast<const Real*>(sum.reals)[i];
    if constexpr (!kIntegers) return real;
    constexpr int kWords = shared::words_of_integers(sizeof(Real));
    const auto part = [&](int word) {
      return static_cast<double>(static_cast<long long>(sum.integers[kWords * i + word]));
    };
    double x = part(0);
    if constexpr (kWords == 2) x += part(1) * two_to(sum.bits - 62);
    const double unit = two_to(-shared::integer_exponent(*sum.largest, sizeof(Real) == 8, sum.bits));
    return static_cast<Real>(x * unit) + real;
  }
};

}  // namespace heddle::portable
