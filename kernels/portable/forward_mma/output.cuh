// Rows of o and lse on their way out, and rows that no tile computes.
#pragma once

#include "portable/forward_mma/weights.cuh"
#include "portable/rows/row_output.cuh"

namespace heddle::portable {

template <auto kConfig>
constexpr OutputType output_type() {
  return output_type(kConfig.o_type, kConfig.storage);
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
