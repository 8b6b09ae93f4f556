// Finished rows on their way to memory: elements by their stored type, and neighbours written at once.
#pragma once

#include "backend/portable/shared/forward_mma_config.h"

namespace heddle::portable {

using shared::StorageType;

/// The stored type where `type` is asked for beside tensors of that storage.
constexpr StorageType output_type(StorageType type, shared::Storage storage) {
  if (type != StorageType::same) return type;
  switch (storage) {
    case shared::Storage::f16:
      return StorageType::f16;
    case shared::Storage::bf16:
      return StorageType::bf16;
    case shared::Storage::f32:
      return StorageType::f32;
    default:
      return StorageType::f64;
  }
}

/// An element of o in memory.
template <StorageType kType, class F>
struct OutputElement {  // f16, bf16
  using Bits = unsigned short;
  static __device__ __forceinline__ Bits of(float x) {
    return kType == StorageType::f16 ? F::half_bits(x) : F::bfloat_bits(x);
  }
};
template <class F>
struct OutputElement<StorageType::f32, F> {
  using Bits = float;
  template <class Real>
  static __device__ __forceinline__ Bits of(Real x) {
    return static_cast<float>(x);
  }
};
template <class F>
struct OutputElement<StorageType::f64, F> {
  using Bits = double;
  template <class Real>
  static __device__ __forceinline__ Bits of(Real x) {
    return static_cast<double>(x);
  }
};

/// kCount neighbours, written at once.
template <class Bits, int kCount>
struct alignas(kCount* static_cast<int>(sizeof(Bits))) OutputRun {
  Bits element[kCount];
};

/// `x[0 .. kCount)`, times `factor`, become elements `column` and on behind `to`: element `begin` of a row of kDim
/// elements, whose address kBytes divide. The column is a multiple of kCount.
template <StorageType kType, int kDim, int kBytes, class F, int kCount>
__device__ __forceinline__ void store_neighbours(typename OutputElement<kType, F>::Bits* to, int column,
                                                 typename F::Real factor, const typename F::Real* x, int begin = 0) {
  using Element = OutputElement<kType, F>;
  using Bits = typename Element::Bits;
  OutputRun<Bits, kCount> run;
#pragma unroll
  for (int e = 0; e < kCount; ++e) run.element[e] = Element::of(x[e] * factor);
  if constexpr (sizeof(Bits) > sizeof(typename F::Real)) F::step();  // else registers would hold the whole row twice
  if (column + kCount <= kDim - begin) {
    *reinterpret_cast<OutputRun<Bits, kCount>*>(to + column) = run;
  } else {
#pragma unroll
    for (int e = 0; e < kCount; ++e) {
      if (column + e < kDim - begin) to[column + e] = run.element[e];
    }
  }
}
/// The largest power of two of neighbours, up to `most`, that a store of kBytes may write at once.
template <StorageType kType, int kBytes, class F>
constexpr int neighbours_at_once(int most) {
  constexpr int kFits = kBytes / static_cast<int>(sizeof(typename OutputElement<kType, F>::Bits));
  return kFits < 1 ? 1 : kFits < most ? kFits : most;
}

/// Row `r` of the thread's rows in these fragments, times `factor`, becomes the elements from `begin` on, which is at
/// `to`, of a row of kDim elements, as far as both go. kBytes divide the address.
template <StorageType kType, int kDim, int kBytes, class F, int kOutFragments>
__device__ __forceinline__ void store_columns(typename OutputElement<kType, F>::Bits* to, typename F::Real factor,
                                              const typename F::Out (&o)[kOutFragments], int r, int begin = 0) {
  constexpr int kRun = neighbours_at_once<kType, kBytes, F>(F::kOutRun);
#pragma unroll
  for (int d = 0; d < kOutFragments; ++d) {
#pragma unroll
    for (int c = 0; c < F::kOwnOuts; c += kRun) {
      store_neighbours<kType, kDim, kBytes, F, kRun>(to, d * F::kOuts + F::own_out(c), factor, &o[d].x[r][c], begin);
    }
  }
}

}  // namespace heddle::portable
