// Rows of o and lse on their way out, and rows that no tile computes. `Params`: a family's, with outputs, lse_rest,
// max_scores and sinks.
#pragma once

#include "portable/rows/row_output.cuh"
#include "portable/rows/row_weights.cuh"

namespace heddle::portable {

template <auto kConfig>
constexpr StorageType output_type() {
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
__device__ __forceinline__ void store_number(const shared::RowNumbers& out, int batch, int head, int row, Real x) {
  Real* to = static_cast<Real*>(static_cast<void*>(out.data));
  to[batch * out.stride[0] + head * out.stride[1] + row * out.stride[2]] = x;
}

/// The numbers of a finished row that are asked for.
template <auto kConfig, class Real, class Params>
__device__ __forceinline__ void store_row_numbers(const Params& params, int batch, int head, int row,
                                                  const RowEnd<Real>& end) {
  if constexpr (kConfig.lse) store_lse<Real>(params.outputs, batch, head, row, end.lse);
  if constexpr (kConfig.lse_rest) store_number<Real>(params.lse_rest, batch, head, row, end.rest);
  if constexpr (kConfig.max_scores) store_number<Real>(params.max_scores, batch, head, row, end.largest);
}

/// kRun sums of a row, from `column` on, times `factor`.
template <auto kConfig, class F, int kRun, class Params>
__device__ __forceinline__ void store_run(const Params& params, int batch, int head, int row, int column,
                                          typename F::Real factor, const typename F::Real (&sums)[kRun]) {
  constexpr StorageType kType = output_type<kConfig>();
  constexpr int kAtOnce = neighbours_at_once<kType, kConfig.o_bytes, F>(kRun);
  auto* to = output_row<kConfig, F>(params.outputs, batch, head, row);
#pragma unroll
  for (int e = 0; e < kRun; e += kAtOnce) {
    store_neighbours<kType, kConfig.v_dim, kConfig.o_bytes, F, kAtOnce>(to, column + e, factor, sums + e);
  }
}

/// o = 0 and lse for rows of one head, by all threads of the CTA; NaN, where the lse of a sink is.
template <auto kConfig, class F, class Params>
__device__ __forceinline__ void store_fill(const Params& params, const shared::RowFill& at, bool of_sequence) {
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
  if constexpr (kConfig.lse || kConfig.max_scores) {
    const RowEnd<Real> none = {0, lse, lse == lse ? Real(0) : lse, -F::infinity()};
    for (int i = F::thread(); i < at.rows; i += F::threads()) {
      store_row_numbers<kConfig, Real>(params, at.batch, at.head, at.row + i, none);
    }
  }
}

}  // namespace heddle::portable
