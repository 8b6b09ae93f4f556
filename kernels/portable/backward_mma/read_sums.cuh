// Gradients of captures and params, summed beside the gradients of rows. Each place where a mod reads one ("read")
// gives each pair of a query and a key a gradient, dt times the mod's slope by what is read, which belongs to an
// element of the capture. A thread adds up what belongs to its rows, while they stay the same, and then adds that to
// the element; what belongs to pairs it adds one by one. The order of the adds is not fixed. If the bits of the sums
// must not depend on the order, a pass before finds the largest part, and parts are added as integers
// (shared::ReadParts).
//
// The generated text defines the reads: classes with kSum, kAxes, kRows, kOfWeight, kSkipsOutside (an index outside
// reads nothing), Slope, slope() and index() (src/backend/device_text/read_text.h).
#pragma once

#include "families/backward_mma/shared/backward_mma_config.h"
#include "families/backward_mma/shared/backward_mma_params.h"
#include "portable/backward_mma/gradient_terms.cuh"

namespace heddle::portable {

/// Bits of a magnitude, which have the order of the magnitudes.
__device__ __forceinline__ unsigned long long bits_of(float x) { return __float_as_uint(x); }
__device__ __forceinline__ unsigned long long bits_of(double x) {
  return static_cast<unsigned long long>(__double_as_longlong(x));
}
/// 2 to that power, from -1022 to 1023.
__device__ __forceinline__ double two_to(int power) {
  return __longlong_as_double(static_cast<long long>(1023 + power) << 52);
}

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
  /// When all parts have been seen.
  __device__ __forceinline__ void finish(const shared::BackwardMmaParams& params) const {
    if constexpr (kConfig.finds_parts()) {
      if (largest_ > 0) atomicMax(params.sums[Read::kSum].largest, bits_of(largest_));
    }
  }

 private:
  static constexpr bool kOfRows = Read::kRows == shared::ReadRows::none ||
                                  Read::kRows == (kConfig.of_keys ? shared::ReadRows::keys : shared::ReadRows::queries);
  static constexpr int kHeld = kOfRows ? kRows : 1;

  __device__ __forceinline__ void bring(const shared::BackwardMmaParams& params, const ElementIndices& e, Real score,
                                        Real gradient) {
    if constexpr (kConfig.finds_parts()) {
      const Real magnitude = F::magnitude(gradient);
      if (magnitude < F::infinity() && magnitude > largest_) largest_ = magnitude;
    } else {
      add_to_element(params, e, score, gradient);
    }
  }
  __device__ __forceinline__ static void add_to_element(const shared::BackwardMmaParams& params,
                                                        const ElementIndices& e, Real score, Real gradient) {
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
    if constexpr (kConfig.read_parts == shared::ReadParts::integers) {
      if (F::magnitude(gradient) < F::infinity()) return add_integer(sum, number, gradient);
    }
    atomicAdd(static_cast<Real*>(sum.reals) + number, gradient);
  }
  __device__ __forceinline__ static void add_integer(const shared::MmaSum& sum, long long number, Real part) {
    constexpr int kWords = shared::words_of_integers(sizeof(Real));
    const int exponent = shared::integer_exponent(*sum.largest, sizeof(Real) == 8, sum.bits);
    const double exact = static_cast<double>(part) * two_to(exponent);
    const long long whole = rounded(exact);
    atomicAdd(sum.integers + kWords * number, static_cast<unsigned long long>(whole));
    if constexpr (kWords == 2) {
      const double rest = (exact - static_cast<double>(whole)) * two_to(62 - sum.bits);
      atomicAdd(sum.integers + kWords * number + 1, static_cast<unsigned long long>(rounded(rest)));
    }
  }
  __device__ __forceinline__ static long long rounded(double x) {
    return static_cast<long long>(x + (x < 0 ? -0.5 : 0.5));
  }

  Real held_[kHeld];
  Real largest_ = 0;  // finds_parts(): of what this thread has brought
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
  __device__ __forceinline__ void finish(const shared::BackwardMmaParams& params) const {
    (ReadSum<kConfig, F, Reads>::finish(params), ...);
  }
};

}  // namespace heddle::portable
