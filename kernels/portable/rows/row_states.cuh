// Several waves, or several CTAs, find maxima, sums and O of the same rows. They leave them here and there, and merge
// them in the order of the keys, so that the result does not depend on which was done first.
#pragma once

#include "portable/rows/row_weights.cuh"

namespace heddle::portable {

/// The state of one row that a wave or a CTA leaves: the maximum and the sum, and v_columns of O.
template <class Real>
struct RowState {
  Real* numbers;
  Real* o;
};

/// `state_of(i)` is where the thread's row i stands; null where it need not be left.
template <auto kConfig, class F, class StateOf, int kFragments, int kOutFragments>
__device__ __forceinline__ void leave_state(StateOf&& state_of, const RowWeights<kConfig, F>& weights,
                                            const typename F::Out (&o)[kFragments][kOutFragments]) {
#pragma unroll
  for (int i = 0; i < RowWeights<kConfig, F>::kRows; ++i) {
    const RowState<typename F::Real> to = state_of(i);
    if (to.numbers == nullptr) continue;
    if (F::first_of_row()) to.numbers[0] = weights.m[i], to.numbers[1] = weights.l[i];
#pragma unroll
    for (int d = 0; d < kOutFragments; ++d) {
#pragma unroll
      for (int c = 0; c < F::kOwnOuts; ++c) {
        to.o[d * F::kOuts + F::own_out(c)] = o[i / F::kOwnRows][d].x[i % F::kOwnRows][c];
      }
    }
  }
}

/// The states that stand at state_of(i) join the thread's rows.
template <auto kConfig, class F, class StateOf, int kFragments, int kOutFragments>
__device__ __forceinline__ void join_state(StateOf&& state_of, RowWeights<kConfig, F>& weights,
                                           typename F::Out (&o)[kFragments][kOutFragments]) {
#pragma unroll
  for (int i = 0; i < RowWeights<kConfig, F>::kRows; ++i) {
    const RowState<typename F::Real> from = state_of(i);
    const typename F::Real top = F::larger(weights.m[i], from.numbers[0]);
    const typename F::Real own = weights.factor_between(weights.m[i], top),
                           other = weights.factor_between(from.numbers[0], top);
    weights.m[i] = top;
    weights.l[i] = F::fused(weights.l[i], own, from.numbers[1] * other);
#pragma unroll
    for (int d = 0; d < kOutFragments; ++d) {
#pragma unroll
      for (int c = 0; c < F::kOwnOuts; ++c) {
        typename F::Real& x = o[i / F::kOwnRows][d].x[i % F::kOwnRows][c];
        x = F::fused(x, own, from.o[d * F::kOuts + F::own_out(c)] * other);
      }
    }
    F::step();  // else parts of several rows are read at once, and registers spill at D 256
  }
}

/// Neighbours of O that a thread of merge_parts() has.
template <class Real>
constexpr int kRunOfPart = 16 / static_cast<int>(sizeof(Real));

/// Merges `count` parts of `rows` rows, by all threads of the CTA, which share the elements of all rows: the parts are
/// few and near, so it is their latency that counts, and every thread has the reads of kAtOnce parts under way.
/// `part_of(part, row)`: where a part's RowState stands, in the order of the keys. Calls visit(row, column, o, weights)
/// for rows with has(row), where `o` are kRunOfPart sums from `column` on, and row 0 of `weights` has the maximum and
/// the sum. A thread visits a run once it has read it from all parts, so visit() may leave it where the first one was.
template <auto kConfig, class F, int kAtOnce = 8, class PartOf, class Has, class Visit>
__device__ __forceinline__ void merge_parts(int rows, int count, PartOf&& part_of, RowWeights<kConfig, F> weights,
                                            Has&& has, Visit&& visit) {
  using Real = typename F::Real;
  constexpr int kRun = kRunOfPart<Real>, kRuns = kConfig.v_columns() / kRun;
  static_assert(kConfig.v_columns() % kRun == 0);
  struct alignas(16) Run {
    Real x[kRun];
  };
  struct alignas(2 * sizeof(Real)) Numbers {
    Real m, l;
  };
  for (int i = F::thread(); i < rows * kRuns; i += F::threads()) {
    const int row = i / kRuns, column = i % kRuns * kRun;
    if (!has(row)) continue;
    Real top = -F::infinity(), sum = 0, o[kRun] = {};
#pragma unroll 1
    for (int first = 0; first < count; first += kAtOnce) {
      Numbers numbers[kAtOnce];
      Run runs[kAtOnce];
#pragma unroll
      for (int n = 0; n < kAtOnce; ++n) {
        numbers[n] = {-F::infinity(), 0};
        runs[n] = {};
        if (first + n < count) {
          const RowState<Real> from = part_of(first + n, row);
          numbers[n] = *reinterpret_cast<const Numbers*>(from.numbers);
          runs[n] = *reinterpret_cast<const Run*>(from.o + column);
        }
      }
      const Real before = top;
#pragma unroll
      for (int n = 0; n < kAtOnce; ++n) top = F::larger(top, numbers[n].m);
      const Real own = weights.factor_between(before, top);
      sum *= own;
#pragma unroll
      for (int e = 0; e < kRun; ++e) o[e] *= own;
#pragma unroll
      for (int n = 0; n < kAtOnce; ++n) {
        const Real factor = weights.factor_between(numbers[n].m, top);
        sum = F::fused(numbers[n].l, factor, sum);
#pragma unroll
        for (int e = 0; e < kRun; ++e) o[e] = F::fused(runs[n].x[e], factor, o[e]);
      }
    }
    weights.m[0] = top;
    weights.l[0] = sum;
    visit(row, column, o, weights);
  }
}

/// A visit needs nothing of memory that could be asked for before.
struct NothingBefore {
  struct Nothing {};
  __device__ __forceinline__ Nothing operator()(int, int) const { return {}; }
};

/// merge_parts() of long rows that stand in one part, state_of(row), a wave a row: so what belongs to a row, and not to
/// its columns, is computed few times. before(row, column) is called for all of the thread's runs of a row before
/// visit() is for the first one, which gets what it returned: reads of one run would wait for the stores of another.
template <auto kConfig, class F, class StateOf, class Has, class Before, class Visit>
__device__ __forceinline__ void visit_long_rows(int rows, StateOf&& state_of, RowWeights<kConfig, F> weights, Has&& has,
                                                Before&& before, Visit&& visit) {
  constexpr int kRun = kRunOfPart<float>, kRuns = kConfig.v_columns() / kRun, kLanes = kConfig.shape().wave;
  static_assert(kConfig.v_columns() % kRun == 0);
#pragma unroll 1
  for (int row = F::wave(); row < rows; row += kConfig.waves()) {
    if (!has(row)) continue;
    const RowState<float> from = state_of(row);
    weights.m[0] = from.numbers[0];
    weights.l[0] = from.numbers[1];
    constexpr int kOwnRuns = (kRuns + kLanes - 1) / kLanes;
    decltype(before(0, 0)) found[kOwnRuns];
#pragma unroll
    for (int i = 0; i < kOwnRuns; ++i) {
      const int run = i * kLanes + F::lane();
      if (kRuns % kLanes == 0 || run < kRuns) found[i] = before(row, run * kRun);
    }
#pragma unroll
    for (int i = 0; i < kOwnRuns; ++i) {
      const int run = i * kLanes + F::lane();
      if (kRuns % kLanes != 0 && run >= kRuns) continue;
      float sums[kRun];
#pragma unroll
      for (int e = 0; e < kRun; ++e) sums[e] = from.o[run * kRun + e];
      visit(row, run * kRun, sums, weights, found[i]);
    }
  }
}

/// merge_parts() of long rows, of f32: a wave has a row at a time, and each of its threads the factor of a part, which
/// the others read from it. merge_parts() computes each part's factor for each run, some 400 instructions of a thread a
/// run, which few waves take longer for than for the reads.
template <auto kConfig, class F, class PartOf, class Has, class Visit>
__device__ __forceinline__ void merge_long_rows(int rows, int count, PartOf&& part_of, RowWeights<kConfig, F> weights,
                                                Has&& has, Visit&& visit) {
  constexpr int kRun = kRunOfPart<float>, kRuns = kConfig.v_columns() / kRun, kLanes = kConfig.shape().wave;
  constexpr int kOwnRuns = (kRuns + kLanes - 1) / kLanes;
  static_assert(kConfig.v_columns() % kRun == 0);
  struct alignas(16) Run {
    float x[kRun];
  };
  const auto is_there = [](int run) { return kRuns % kLanes == 0 || run < kRuns; };
#pragma unroll 1
  for (int row = F::wave(); row < rows; row += kConfig.waves()) {
    if (!has(row)) continue;
    float top = -F::infinity(), sum = 0;
    Run o[kOwnRuns] = {};
#pragma unroll 1
    for (int first = 0; first < count; first += kLanes) {
      const int left = count - first < kLanes ? count - first : kLanes;
      float m = -F::infinity(), l = 0;
      if (F::lane() < left) {
        const float* const numbers = part_of(first + F::lane(), row).numbers;
        m = numbers[0];
        l = numbers[1];
      }
      const float before = top;
      top = F::larger(top, F::wave_max(m));
      const float own = weights.factor_between(before, top), factor = weights.factor_between(m, top);
      sum = F::fused(sum, own, F::wave_sum(l * factor));
#pragma unroll
      for (int i = 0; i < kOwnRuns; ++i) {
#pragma unroll
        for (int e = 0; e < kRun; ++e) o[i].x[e] *= own;
      }
#pragma unroll 4
      for (int n = 0; n < left; ++n) {
        const float of_part = F::from_lane(factor, n);
        const float* const from = part_of(first + n, row).o;
#pragma unroll
        for (int i = 0; i < kOwnRuns; ++i) {
          const int run = i * kLanes + F::lane();
          if (!is_there(run)) continue;
          const Run read = *reinterpret_cast<const Run*>(from + run * kRun);
#pragma unroll
          for (int e = 0; e < kRun; ++e) o[i].x[e] = F::fused(read.x[e], of_part, o[i].x[e]);
        }
      }
    }
    weights.m[0] = top;
    weights.l[0] = sum;
#pragma unroll
    for (int i = 0; i < kOwnRuns; ++i) {
      const int run = i * kLanes + F::lane();
      if (is_there(run)) visit(row, run * kRun, o[i].x, weights);
    }
  }
}

}  // namespace heddle::portable
