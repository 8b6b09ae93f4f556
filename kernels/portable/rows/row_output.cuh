// Finished rows on their way to memory: elements by their stored type, and neighbours written at once.
#pragma once

#include "backend/portable/shared/forward_mma_config.h"

namespace heddle::portable {

using shared::OutputType;

/// The stored type where `type` is asked for beside tensors of that storage.
constexpr OutputType output_type(OutputType type, shared::Storage storage) {
  if (type != OutputType::same) return type;
  switch (storage) {
    case shared::Storage::f16:
      return OutputType::f16;
    case shared::Storage::bf16:
      return OutputType::bf16;
    case shared::Storage::f32:
      return OutputType::f32;
    default:
      return OutputType::f64;
  }
}

/// An element of o in memory.
template <OutputType kType, class F>
struct OutputElement {  // f16, bf16
  using Bits = unsigned short;
  static __device__ __forceinline__ Bits of(float x) {
    return kType == OutputType::f16 ? F::half_bits(x) : F::bfloat_bits(x);
  }
};
template <class F>
struct OutputElement<OutputType::f32, F> {
  using Bits = float;
  template <class Real>
  static __device__ __forceinline__ Bits of(Real x) {
    return static_cast<float>(x);
  }
};
template <class F>
struct OutputElement<OutputType::f64, F> {
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

/// Row `r` of the thread's rows in these fragments, times `factor`, becomes the row of kDim elements at `to`, whose
/// address kBytes divide.
template <OutputType kType, int kDim, int kBytes, class F, int kOutFragments>
__device__ __forceinline__ void store_columns(typename OutputElement<kType, F>::Bits* to, typename F::Real factor,
                                              const typename F::Out (&o)[kOutFragments], int r) {
  using Element = OutputElement<kType, F>;
  using Bits = typename Element::Bits;
  constexpr int kFits = kBytes / static_cast<int>(sizeof(Bits)), kMost = F::kOutRun < kFits ? F::kOutRun : kFits;
  constexpr int kRun = kMost < 1 ? 1 : kMost;
#pragma unroll
  for (int d = 0; d < kOutFragments; ++d) {
#pragma unroll
    for (int c = 0; c < F::kOwnOuts; c += kRun) {
      const int column = d * F::kOuts + F::own_out(c);
      OutputRun<Bits, kRun> run;
#pragma unroll
      for (int e = 0; e < kRun; ++e) run.element[e] = Element::of(o[d].x[r][c + e] * factor);
      if constexpr (sizeof(Bits) > sizeof(typename F::Real))
        F::step();  // else registers would hold the whole row twice
      if (column + kRun <= kDim) {
        *reinterpret_cast<OutputRun<Bits, kRun>*>(to + column) = run;
      } else {
#pragma unroll
        for (int e = 0; e < kRun; ++e) {
          if (column + e < kDim) to[column + e] = run.element[e];
        }
      }
    }
  }
}

}  // namespace heddle::portable
