// Gradients of captures and params, summed beside the gradients of rows. Each place where a mod reads one ("read")
// gives each pair of a query and a key a gradient, dt times the mod's slope by what is read, which belongs to an
// element of the capture. A thread adds up what belongs to its rows, while they stay the same, and then adds that to
// the element; what belongs to pairs it adds one by one. The order of the adds is not fixed.
//
// The generated text defines the reads: classes with kSum, kAxes, kRows, kOfWeight, kSkipsOutside (an index outside
// reads nothing), Slope, slope() and index() (src/backend/device_text/read_text.h).
#pragma once

#include "families/backward_mma/shared/backward_mma_config.h"
#include "families/backward_mma/shared/backward_mma_params.h"
#include "portable/backward_mma/gradient_terms.cuh"

namespace heddle::portable {

template <auto kConfig, class F, class Read>
class ReadSum {
 public:
  using Real = typename F::Real;
  static constexpr int kRows = kConfig.row_fragments * F::kOwnRows;

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i < kHeld; ++i) held_[i] = 0;
  }
  /// The pair of row i at `e`: `d_t` is the gradient of its t, `d_w` that of its weight.
  __device__ __forceinline__ void add(const shared::BackwardMmaParams& params, int i, const ElementIndices& e,
                                      Real score, Real d_t, Real d_w) {
    const auto u = Read::Slope::uniform(params.mod, e.batch, e.head);
    const auto r = Read::Slope::row(params.mod, u, e.batch, e.head, e.q_idx);
    const auto c = Read::Slope::column(params.mod, u, e.batch, e.head, e.kv_idx);
    const Real slope = Read::slope(params.mod, u, r, c, score, e.batch, e.head, e.q_idx, e.kv_idx);
    const Real gradient = (Read::kOfWeight ? d_w : d_t) * slope;
    if constexpr (kOfRows) {
      held_[i] += gradient;
    } else {
      bring(params, e, score, gradient);
    }
  }
  /// Held sums go to their elements, by all threads of a wave. `at(i)`: a pair of row i.
  template <class At>
  __device__ __forceinline__ void flush(const shared::BackwardMmaParams& params, At&& at) {
    if constexpr (kOfRows) {
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        const Real sum = F::row_sum(held_[i]);
        held_[i] = 0;
        if (F::first_of_row()) bring(params, at(i), 0, sum);
      }
    }
  }

 private:
  static constexpr bool kOfRows = Read::kRows == shared::ReadRows::none ||
                                  Read::kRows == (kConfig.of_keys ? shared::ReadRows::keys : shared::ReadRows::queries);
  static constexpr int kHeld = kOfRows ? kRows : 1;

  __device__ __forceinline__ static void bring(const shared::BackwardMmaParams& params, const ElementIndices& e,
                                               Real score, Real gradient) {
    if (gradient == 0) return;
    const shared::MmaSum& sum = params.sums[Read::kSum];
    int index[4] = {};
    Read::index(params.mod, score, e.batch, e.head, e.q_idx, e.kv_idx, index);
    long long number = 0;
#pragma unroll
    for (int axis = 0; axis < Read::kAxes; ++axis) {
      const int last = sum.extent[axis] - 1;
      const int inside = index[axis] < 0 ? 0 : index[axis] < last ? index[axis] : last;
      if (Read::kSkipsOutside && inside != index[axis]) return;
      number = number * sum.extent[axis] + inside;
    }
    atomicAdd(static_cast<Real*>(sum.reals) + number, gradient);
  }

  Real held_[kHeld];
};

/// The reads of a pass.
template <auto kConfig, class F, class... Reads>
class ReadSums : ReadSum<kConfig, F, Reads>... {
 public:
  using Real = typename F::Real;
  static constexpr bool kAny = sizeof...(Reads) > 0;

  __device__ __forceinline__ void clear() { (ReadSum<kConfig, F, Reads>::clear(), ...); }
  __device__ __forceinline__ void add(const shared::BackwardMmaParams& params, int i, const ElementIndices& e,
                                      Real score, Real d_t, Real d_w) {
    (ReadSum<kConfig, F, Reads>::add(params, i, e, score, d_t, d_w), ...);
  }
  template <class At>
  __device__ __forceinline__ void flush(const shared::BackwardMmaParams& params, At&& at) {
    (ReadSum<kConfig, F, Reads>::flush(params, at), ...);
  }
};

}  // namespace heddle::portable
