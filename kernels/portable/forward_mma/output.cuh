// Rows of o and lse on their way out, and rows that no tile computes.
#pragma once

#include "portable/forward_mma/weights.cuh"

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
template <auto kConfig>
constexpr OutputType output_type() {
  return output_type(kConfig.o_type, kConfig.storage);
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

/// `x[0 .. kCount)`, times `factor`, become elements `column` and on of the row of kDim elements at `to`, whose address
/// kBytes divide. The column is a multiple of kCount.
template <OutputType kType, int kDim, int kBytes, class F, int kCount>
__device__ __forceinline__ void store_neighbours(typename OutputElement<kType, F>::Bits* to, int column,
                                                 typename F::Real factor, const typename F::Real* x) {
  using Element = OutputElement<kType, F>;
  using Bits = typename Element::Bits;
  OutputRun<Bits, kCount> run;
#pragma unroll
  for (int e = 0; e < kCount; ++e) run.element[e] = Element::of(x[e] * factor);
  if constexpr (sizeof(Bits) > sizeof(typename F::Real)) F::step();  // else registers would hold the whole row twice
  if (column + kCount <= kDim) {
    *reinterpret_cast<OutputRun<Bits, kCount>*>(to + column) = run;
  } else {
#pragma unroll
    for (int e = 0; e < kCount; ++e) {
      if (column + e < kDim) to[column + e] = run.element[e];
    }
  }
}
/// The largest power of two of neighbours, up to `most`, that a store of kBytes may write at once.
template <OutputType kType, int kBytes, class F>
constexpr int neighbours_at_once(int most) {
  constexpr int kFits = kBytes / static_cast<int>(sizeof(typename OutputElement<kType, F>::Bits));
  return kFits < 1 ? 1 : kFits < most ? kFits : most;
}

/// Row `r` of the thread's rows in these fragments, times `factor`, becomes the row of kDim elements at `to`, whose
/// address kBytes divide.
template <OutputType kType, int kDim, int kBytes, class F, int kOutFragments>
__device__ __forceinline__ void store_columns(typename OutputElement<kType, F>::Bits* to, typename F::Real factor,
                                              const typename F::Out (&o)[kOutFragments], int r) {
  constexpr int kRun = neighbours_at_once<kType, kBytes, F>(F::kOutRun);
#pragma unroll
  for (int d = 0; d < kOutFragments; ++d) {
#pragma unroll
    for (int c = 0; c < F::kOwnOuts; c += kRun) {
      store_neighbours<kType, kDim, kBytes, F, kRun>(to, d * F::kOuts + F::own_out(c), factor, &o[d].x[r][c]);
    }
  }
}

/// Where row `row` of o begins.
template <auto kConfig, class F>
__device__ __forceinline__ auto* output_row(const shared::Outputs& out, int batch, int head, int row) {
  using Bits = typename OutputElement<output_type<kConfig>(), F>::Bits;
  return static_cast<Bits*>(out.o) + batch * out.o_stride[0] + head * out.o_stride[1] + row * out.o_stride[2];
}

/// Stores the finished row as row `row` of o.
template <auto kConfig, class F, int kOutFragments>
__device__ __forceinline__ void store_row(const shared::Outputs& out, int batch, int head, int row,
                                          typename F::Real factor, const typename F::Out (&o)[kOutFragments], int r) {
  store_columns<output_type<kConfig>(), kConfig.v_dim, kConfig.o_bytes, F>(
      output_row<kConfig, F>(out, batch, head, row), factor, o, r);
}

/// f64 where q, k and v are.
template <class Real>
__device__ __forceinline__ void store_lse(const shared::Outputs& out, int batch, int head, int row, Real lse) {
  Real* to = static_cast<Real*>(static_cast<void*>(out.lse));
  to[batch * out.lse_stride[0] + head * out.lse_stride[1] + row * out.lse_stride[2]] = lse;
}

template <class Real>
__device__ __forceinline__ void store_lse_rest(const ForwardMmaParams& params, int batch, int head, int row,
                                               Real rest) {
  const shared::RowNumbers& out = params.lse_rest;
  Real* to = static_cast<Real*>(static_cast<void*>(out.data));
  to[batch * out.stride[0] + head * out.stride[1] + row * out.stride[2]] = rest;
}

/// o = 0 and lse for rows of one head, by all threads of the CTA; NaN, where the lse of a sink is.
template <auto kConfig, class F>
__device__ __forceinline__ void store_fill(const ForwardMmaParams& params, const shared::RowFill& at,
                                           bool of_sequence) {
  using Real = typename F::Real;
  using Element = OutputElement<output_type<kConfig>(), F>;
  const shared::Outputs& out = params.outputs;
  Real lse = -F::infinity();
  if (of_sequence) lse = RowWeights<kConfig, F>::lse_of_nothing(params.sinks, at.head);
  const Real x = kConfig.sinks && lse != lse ? lse : Real(0);
  auto* o = static_cast<typename Element::Bits*>(out.o) + at.batch * out.o_stride[0] + at.head * out.o_stride[1];
  for (int i = F::thread(); i < at.rows * kConfig.v_dim; i += F::threads()) {
    o[(at.row + i / kConfig.v_dim) * out.o_stride[2] + i % kConfig.v_dim] = Element::of(x);
  }
  if constexpr (kConfig.lse) {
    for (int i = F::thread(); i < at.rows; i += F::threads()) {
      store_lse<Real>(out, at.batch, at.head, at.row + i, lse);
      if constexpr (kConfig.lse_rest) store_lse_rest<Real>(params, at.batch, at.head, at.row + i, lse == lse ? 0 : lse);
    }
  }
}

/// Lengths on the device, by all CTAs: the rows that each sequence has (`of_sequence`), or those that none has.
template <auto kConfig, class F>
__device__ __forceinline__ void store_fills_by_sequence(const ForwardMmaParams& params, int cta, int ctas,
                                                        bool of_sequence) {
  constexpr int kRows = 64;  // of a part
  const shared::ListedTiles& listed = params.listed;
  for (int batch = 0; batch < listed.sequence_count; ++batch) {
    const shared::SequenceSpan* span = params.mod.sequences + batch;
    const int begin = of_sequence ? span->q_begin : span->q_begin + span->q_len;
    const int rows = of_sequence ? span->q_len : (listed.packed ? span[1].q_begin : listed.q_rows) - begin;
    const int parts = (rows + kRows - 1) / kRows;
    for (int i = cta; i < parts * listed.q_heads; i += ctas) {
      const int part = i % parts * kRows, left = rows - part;
      store_fill<kConfig, F>(params, {begin + part, left < kRows ? left : kRows, i / parts, batch}, of_sequence);
    }
  }
}

/// By all CTAs: the rows that the list of fills names, or that the lengths on the device leave to no tile.
template <auto kConfig, class F>
__device__ __forceinline__ void store_fills(const ForwardMmaParams& params, int cta, int ctas) {
  if constexpr (kConfig.device_lengths) {
    store_fills_by_sequence<kConfig, F>(params, cta, ctas, false);
    // Without keys the list has no tiles.
    if (params.mod.kv_len == 0) store_fills_by_sequence<kConfig, F>(params, cta, ctas, true);
  } else {
    for (int i = cta; i < params.fills.count; i += ctas) {
      store_fill<kConfig, F>(params, params.fills.fills[i], i < params.fills.unattending);
    }
  }
}

}  // namespace heddle::portable
