// The rows' weights: scores become what the values are multiplied by, before the weight_mod. With softmax each row has
// its running maximum and the sum of its exponentials; with the other normalizers a weight is a function of its own t.
//
// f16 ends at 2^16 and loses bits below 2^-14, so its weights are made larger by a power of two, which the end of the
// tile takes back:
// - softmax: `headroom` powers beside its maximum, so that what is left of a row counts if a weight_mod drops its
//   largest weights;
// - sigmoid: 2^15, or 2^8 where a weight_mod needs room;
// - none: each row has a running power of its own, from its largest weight. So has sigmoid where q is not f16: beside
//   bf16 a row counts whose weights are all far below what f16 holds.
#pragma once

#include "backend/portable/shared/forward_mma_config.h"
#include "shared/storage.h"

namespace heddle::portable {

using shared::Normalizer;

/// How a row ends.
template <class Real>
struct RowEnd {
  Real factor, lse;  // what its O is multiplied by; natural
  Real rest;         // what lse's rounding left out
  Real largest = 0;  // t, without the sink; NaN where one is NaN or +inf
};

/// Each wave has its rows' keys alone.
struct NothingShared {
  static constexpr bool kShares = false;
};

/// `Share` has await_rows(), which waits for products that add to O.
template <class Share>
inline constexpr bool kAwaitsRows = requires(const Share& share) {
  share.await_rows();
};

template <auto kConfig, class F>
class RowWeights {
 public:
  using Real = typename F::Real;
  static constexpr int kRows = kConfig.row_fragments * F::kOwnRows, kOwnRows = F::kOwnRows;
  static constexpr bool kSoftmax = kConfig.normalizer == Normalizer::softmax;
  static constexpr bool kSigmoid = kConfig.normalizer == Normalizer::sigmoid;
  static constexpr bool kF16 = kConfig.storage == shared::Storage::f16;
  static constexpr bool kPowers =
      kF16 && !kSoftmax && (!kSigmoid || kConfig.q_bf16 || kConfig.q_fp8 != shared::Fp8::none);
  /// Rows have maxima, or powers, that their O follows.
  static constexpr bool kMoves = kSoftmax || kPowers;
  static_assert(kSoftmax || (!kConfig.lse && !kConfig.sinks && !kConfig.max_scores));

  Real m[kRows];  // softmax: the largest score; else the power; -inf: none yet
  Real l[kRows];  // softmax: the sum of exponentials, of the thread's keys; after join() of all

  /// `scale` makes t of scores.
  __device__ __forceinline__ explicit RowWeights(Real scale) : scale_(scale) { forget(); }
  /// Back to the state in which no key has been seen.
  __device__ __forceinline__ void forget() {
#pragma unroll
    for (int i = 0; i < kRows; ++i) m[i] = -F::infinity(), l[i] = 0;
  }

  /// S becomes P. O is brought to the rows' new maxima. `share`: NothingShared, or it has kShares and turns the largest
  /// scores of the thread's rows, share(Real (&)[kRows]), into those of all waves that have the rows. If it has
  /// await_rows(), that is called once, before O is read.
  template <int kFragments, int kKeyFragments, int kOutFragments, class Share>
  __device__ __forceinline__ void step(typename F::Scores (&s)[kFragments][kKeyFragments],
                                       typename F::Out (&o)[kFragments][kOutFragments], const Share& share) {
    if constexpr (kSoftmax && kAwaitsRows<Share>) {
      Real factor[kRows];
      const bool moved = advance(factor, [&](int i) { return largest<false>(s, i); });
      exponentials(s);
      share.await_rows();
      if (moved) multiply(o, factor);
      return;
    }
    if constexpr (kAwaitsRows<Share>) share.await_rows();
    if constexpr (kSoftmax) {
      move<false>(s, o, share, [](Real top) { return top; });
      exponentials(s);
    } else if constexpr (kSigmoid) {
      const Real unit = scale_ * static_cast<Real>(-kLog2E);
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        // If the power overflows, the weight is 0.
        for_row(s, i, [&](Real& x) { x = F::reciprocal(kBase + F::exp2(F::fused(x, unit, -Real(kRaise)))); });
      }
      follow_powers(s, o, share);
    } else {
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        for_row(s, i, [&](Real& x) { x = x == -F::infinity() ? Real(0) : x * scale_; });
      }
      follow_powers(s, o, share);
    }
  }

  /// O and the sums are brought to the maxima, or powers, of others that have seen the same keys, and more.
  /// `m_of(i)`: that of the thread's row i.
  template <int kFragments, int kOutFragments, class Of>
  __device__ __forceinline__ void follow(typename F::Out (&o)[kFragments][kOutFragments], Of&& m_of) {
    if constexpr (kMoves) move(o, m_of);
  }

  /// The sums become those of whole rows.
  __device__ __forceinline__ void join() {
    if constexpr (kSoftmax) {
#pragma unroll
      for (int i = 0; i < kRows; ++i) l[i] = F::row_sum(l[i]);
    }
  }

  /// After join().
  __device__ __forceinline__ RowEnd<Real> close(int i, const shared::Sinks& sinks, int head) const {
    RowEnd<Real> end = close_row(i, sinks, head);
    if constexpr (kConfig.max_scores) {
      // A sum that is NaN knows of scores that a maximum does not.
      end.largest = l[i] != l[i] ? l[i] : m[i] == -F::infinity() ? m[i] : m[i] * scale_;
    }
    return end;
  }

  /// lse of a row that attends nothing.
  static __device__ __forceinline__ Real lse_of_nothing(const shared::Sinks& sinks, int head) {
    if constexpr (!kConfig.sinks) return -F::infinity();
    const Real sink = static_cast<const Real*>(static_cast<const void*>(sinks.data))[head * sinks.stride];
    return sink < F::infinity() ? sink : F::nan();
  }

  /// The factor of O and l when the row's m becomes `to`, in a state that has `from`.
  __device__ __forceinline__ Real factor_between(Real from, Real to) const {
    if constexpr (!kMoves) return 1;
    return F::exp2((from - (to == -F::infinity() ? Real(0) : to)) * unit());
  }

 private:
  __device__ __forceinline__ RowEnd<Real> close_row(int i, const shared::Sinks& sinks, int head) const {
    if constexpr (!kSoftmax) return {kPowers ? F::exp2(start_of(i)) : kUnraise, 0, 0};
    if constexpr (kConfig.sinks) {
      const Real sink = static_cast<const Real*>(static_cast<const void*>(sinks.data))[head * sinks.stride];
      return close_with_sink(i, sink);
    }
    const Real of_sum = static_cast<Real>(kLn2) * (F::log2(l[i]) - kHeadroom);
    // NaN stays.
    return with_rest(l[i] > 0 ? F::reciprocal(l[i]) : l[i], F::fused(m[i], scale_, of_sum), m[i], scale_, of_sum);
  }

  static constexpr double kLn2 = 0.693147180559945309, kLog2E = 1.44269504088896341;
  static constexpr int kRaise = kF16 && kSigmoid && !kPowers ? kConfig.weighted ? 8 : 15 : 0;
  static constexpr Real kUnraise = kRaise == 0 ? 1 : kRaise == 8 ? 0x1p-8 : 0x1p-15, kBase = kUnraise;
  static constexpr int kTop = kConfig.weighted ? 5 : 10;  // kPowers: of the largest weight
  static constexpr Real kLeast = -120, kMost = 117;       // of its power: it and its inverse are normal numbers
  static constexpr Real kHeadroom = kConfig.headroom;
  /// Up to this power an exponent is x unit - m unit, one fused multiply-add. Beyond, where m unit is rounded too
  /// coarsely or is infinite, it is (x - m) unit. Weights of f32 whose lse is asked for in two words bear less.
  static constexpr Real kFar = kConfig.lse_rest && kConfig.storage == shared::Storage::f32 ? 16 : 1024;

  /// m times this is in powers of two.
  __device__ __forceinline__ Real unit() const { return kSoftmax ? scale_ * static_cast<Real>(kLog2E) : Real(1); }
  /// The stand-in for m in exponents.
  __device__ __forceinline__ Real start_of(int i) const { return m[i] == -F::infinity() ? Real(0) : m[i]; }

  template <int kFragments, int kKeyFragments, class Visit>
  __device__ __forceinline__ static void for_row(typename F::Scores (&s)[kFragments][kKeyFragments], int i,
                                                 Visit&& visit) {
#pragma unroll
    for (int n = 0; n < kKeyFragments; ++n) {
#pragma unroll
      for (int c = 0; c < F::kOwnKeys; ++c) visit(s[i / kOwnRows][n].x[i % kOwnRows][c]);
    }
  }
  /// kSoftmax: S becomes P beside the rows' maxima, which are added up.
  template <int kFragments, int kKeyFragments>
  __device__ __forceinline__ void exponentials(typename F::Scores (&s)[kFragments][kKeyFragments]) {
    const Real power = unit();
    bool far = false;
#pragma unroll
    for (int i = 0; i < kRows; ++i) far |= F::magnitude(start_of(i) * power) > kFar;
    if (F::any_of_wave(far)) {
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        const Real from = start_of(i);
        for_row(s, i, [&](Real& x) {
          x = F::exp2(F::fused(x - from, power, kHeadroom));
          l[i] += x;
        });
      }
      return;
    }
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const Real from = F::fused(start_of(i), -power, kHeadroom);
      for_row(s, i, [&](Real& x) {
        x = F::exp2(F::fused(x, power, from));
        l[i] += x;
      });
    }
  }
  /// The largest of a whole row; NaN does not count.
  template <bool kMagnitude, int kFragments, int kKeyFragments>
  __device__ __forceinline__ static Real largest(typename F::Scores (&s)[kFragments][kKeyFragments], int i) {
    Real found = kMagnitude ? Real(0) : -F::infinity();
    for_row(s, i, [&](Real& x) { found = F::larger(found, kMagnitude ? F::magnitude(x) : x); });
    return F::row_max(found);
  }
  __device__ __forceinline__ static Real power_of(Real largest) {
    if (!(largest > 0)) return -F::infinity();
    const Real power = F::floor(F::log2(largest)) - Real(kTop);
    return power < kLeast ? kLeast : power > kMost ? kMost : power;
  }

  /// Each row's power follows its largest weight, and its weights are multiplied by the power's inverse.
  template <int kFragments, int kKeyFragments, int kOutFragments, class Share>
  __device__ __forceinline__ void follow_powers(typename F::Scores (&s)[kFragments][kKeyFragments],
                                                typename F::Out (&o)[kFragments][kOutFragments], const Share& share) {
    if constexpr (kPowers) {
      move<true>(s, o, share, [](Real top) { return power_of(top); });
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        const Real factor = F::exp2(-start_of(i));
        for_row(s, i, [&](Real& x) { x *= factor; });
      }
    }
  }
  /// m becomes the larger one of m and what the rows of this step have: state_of(the largest score).
  template <bool kMagnitude, int kFragments, int kKeyFragments, int kOutFragments, class Share, class StateOf>
  __device__ __forceinline__ void move(typename F::Scores (&s)[kFragments][kKeyFragments],
                                       typename F::Out (&o)[kFragments][kOutFragments], const Share& share,
                                       StateOf&& state_of) {
    if constexpr (Share::kShares) {
      Real tops[kRows];
#pragma unroll
      for (int i = 0; i < kRows; ++i) tops[i] = largest<kMagnitude>(s, i);
      share(tops);
      move(o, [&](int i) { return state_of(tops[i]); });
    } else {
      move(o, [&](int i) { return state_of(largest<kMagnitude>(s, i)); });
    }
  }
  template <int kFragments, int kOutFragments, class Of>
  __device__ __forceinline__ void move(typename F::Out (&o)[kFragments][kOutFragments], Of&& of) {
    Real factor[kRows];
    if (advance(factor, of)) multiply(o, factor);
  }
  /// m and l alone. True if a row of the wave moves.
  template <class Of>
  __device__ __forceinline__ bool advance(Real (&factor)[kRows], Of&& of) {
    bool moved = false;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const Real before = m[i];
      m[i] = F::larger(before, of(i));
      factor[i] = factor_between(before, m[i]);
      l[i] *= factor[i];
      moved |= m[i] != before;
    }
    return F::any_of_wave(moved);
  }
  template <int kFragments, int kOutFragments>
  __device__ __forceinline__ static void multiply(typename F::Out (&o)[kFragments][kOutFragments],
                                                  const Real (&factor)[kRows]) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
#pragma unroll
      for (int d = 0; d < kOutFragments; ++d) {
#pragma unroll
        for (int c = 0; c < F::kOwnOuts; ++c) o[i / kOwnRows][d].x[i % kOwnRows][c] *= factor[i];
      }
    }
  }

  /// lse = top unit + of_sum, in two words. The product and lse are close to each other, so that f32 holds their
  /// difference.
  static __device__ __forceinline__ RowEnd<Real> with_rest(Real factor, Real lse, Real top, Real unit, Real of_sum) {
    if constexpr (!kConfig.lse_rest) return {factor, lse, 0};
    return {factor, lse, lse == -F::infinity() ? Real(0) : F::fused(top, unit, -lse) + of_sum};
  }

  /// The larger one of the row's maximum and the sink comes first: l' = l 2^(m - m') + 2^(sink - m'), and O is divided
  /// by l' 2^(m' - m). Both meet before they are scaled: beside large ones powers of two have no digits left.
  __device__ __forceinline__ RowEnd<Real> close_with_sink(int i, Real sink) const {
    if (l[i] == 0) {
      const Real lse = sink < F::infinity() ? sink : F::nan();
      return {lse == lse ? Real(0) : lse, lse, lse == lse ? Real(0) : lse};
    }
    const Real apart = F::fused(m[i], scale_, -sink) * static_cast<Real>(kLog2E);
    const bool above = apart > 0;
    // Far below a sink the row's share becomes a subnormal number, which exp2 may flush: weights of 2^24 make it count.
    const Real share = F::exp2((above ? Real(0) : apart) - kHeadroom + 24) * Real(0x1p-24);
    const Real sum = F::fused(l[i], share, F::exp2(above ? -apart : sink - sink));  // an infinite sink makes NaN
    const Real of_sum = static_cast<Real>(kLn2) * F::log2(sum);
    const Real top = above ? m[i] : sink, unit = above ? scale_ : Real(1);
    // NaN stays.
    return with_rest(sum > 0 ? share * F::reciprocal(sum) : sum, F::fused(top, unit, of_sum), top, unit, of_sum);
  }

  Real scale_;
};

}  // namespace heddle::portable
