// From scores to dS, on transposed scores (transposed_scores.cuh). With t = score_mod(s), p the weight, w = weight_mod:
//
//   dt = X (w dP - delta),  X = p (softmax), p - p^2 (sigmoid), 1 (none);  ds = dt/ds dt
//
// weigh() leaves X dt/ds in the registers of the scores, so that a derivative takes none of its own, and p w, rounded,
// for dV. differentiate() makes ds of dP. An element that does not attend, or whose t is -inf, gives 0 to both.
#pragma once

#include "fragments/transposed_scores.cuh"
#include "ptx/shared_words.cuh"
#include "shared/backward_rows.h"

namespace heddle {

using shared::Normalizer;
using shared::ScoreForm;

/// The sixteen numbers of a thread's rows, lse or delta: in registers, or where they stand.
template <bool kEarly>
struct RowNumbersOfThread {
  float all[kEarly ? 16 : 1];
  ptx::Address at;

  __device__ __forceinline__ void set(ptx::Address from) {
    at = from;
    if constexpr (kEarly) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float four[4];
        ptx::load_floats(from + 16 * i, four);
#pragma unroll
        for (int e = 0; e < 4; ++e) all[4 * i + e] = four[e];
      }
    }
  }
  __device__ __forceinline__ void read(int i, float (&four)[4]) const {
    if constexpr (kEarly) {
#pragma unroll
      for (int e = 0; e < 4; ++e) four[e] = all[4 * i + e];
    } else {
      ptx::load_floats(at + 16 * i, four);
    }
  }
};

/// Four factors of a thread, from register 4 j on; other places where they may stand have functions of their own.
__device__ __forceinline__ void read_factors(const float (&x)[32], int j, float (&four)[4]) {
#pragma unroll
  for (int n = 0; n < 4; ++n) four[n] = x[4 * j + n];
}

template <auto kConfig, class Params>
class TransposedWeights {
 public:
  using Numbers = RowNumbersOfThread<kConfig.early_numbers>;
  static constexpr bool kSoftmax = kConfig.normalizer == Normalizer::softmax;
  static constexpr bool kSigmoid = kConfig.normalizer == Normalizer::sigmoid;
  static constexpr bool kPlain = kConfig.scores == ScoreForm::plain;
  static constexpr bool kMapped = kConfig.scores == ScoreForm::mapped;
  static constexpr bool kAdded = kConfig.scores == ScoreForm::added;
  static_assert(kPlain || kMapped || kAdded);
  static constexpr bool kOne = kConfig.normalizer == Normalizer::none && !kMapped;  // X dt/ds, where it attends
  static constexpr float kUnit = kConfig.normalizer == Normalizer::none ? 1.0F : ptx::kLog2E;

  /// Products s become X dt/ds, and `p` the weights: registers of dV's product. `numbers`: where the thread's lse
  /// begin. kCut: some of `bits` are 0. kFar: the block of rows is, and `low` says where its low numbers begin.
  /// leave(j) is called when registers 4 j to 4 j + 3 of `s` are done. Returns the bits without the elements whose t is
  /// -inf.
  template <bool kCut, bool kFar, class Leave>
  static __device__ __forceinline__ unsigned weigh(float (&s)[32], unsigned (&p)[16], unsigned bits,
                                                   const TransposedDrops& drops, const Params& params,
                                                   const TransposedOrigin& at, const Numbers& numbers,
                                                   [[maybe_unused]] ptx::Address low, const Leave& leave) {
    const shared::ModValues& mod = params.mod;
    Mods own(mod, at);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float lse[4] = {0, 0, 0, 0}, lows[4] = {0, 0, 0, 0};
      if constexpr (kSoftmax) numbers.read(i, lse);
      if constexpr (kFar) read_low(low, i, lows);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int j = 2 * i + half;
        if constexpr (kConfig.frugal) own = here<Mods>(mod, at);
        float weights[4];
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int q_idx = at.query(j, e);
          own.set_query(mod, at, q_idx);
#pragma unroll
          for (int r = 0; r < 2; ++r) {
            const int n = 4 * j + 2 * r + e;
            float slope = 1;
            float t = own.template t<kFar>(s[n], slope, params, at, q_idx, r);
            if constexpr (!kPlain) {
              if (t == -ptx::infinity()) bits &= ~(1U << n);
            }
            const bool attends = !(kCut || !kPlain) || (bits >> n & 1) != 0;
            float weight;
            if constexpr (kFar) t = far_power(t, lse[2 * half + e], lows[2 * half + e], params);
            const float factor = factor_of(t, kFar ? 0.0F : lse[2 * half + e], weight);
            if constexpr (!kOne) s[n] = attends ? factor * slope : 0.0F;
            if constexpr (kConfig.weighted) weight *= own.weight(mod, at, q_idx, r);
            if constexpr (kConfig.dropped) weight = drops.weighed(n, weight);
            weights[2 * r + e] = attends ? weight : 0.0F;
          }
        }
#pragma unroll
        for (int r = 0; r < 2; ++r) p[2 * j + r] = ptx::pack<kConfig.f16>(weights[2 * r], weights[2 * r + 1]);
        leave(j);
      }
    }
    return bits;
  }
  template <bool kCut, bool kFar>
  static __device__ __forceinline__ unsigned weigh(float (&s)[32], unsigned (&p)[16], unsigned bits,
                                                   const TransposedDrops& drops, const Params& params,
                                                   const TransposedOrigin& at, const Numbers& numbers,
                                                   ptx::Address low) {
    return weigh<kCut, kFar>(s, p, bits, drops, params, at, numbers, low, [](int) {});
  }

  /// dP becomes ds, rounded: registers of dK's product. `x`: X dt/ds, by read_factors(). `numbers`: where the thread's
  /// deltas begin.
  template <bool kCut, class Factors>
  static __device__ __forceinline__ void differentiate(const float (&d_p)[32], const Factors& x, unsigned (&d_s)[16],
                                                       unsigned bits, const TransposedDrops& drops,
                                                       const Params& params, const TransposedOrigin& at,
                                                       const Numbers& numbers) {
    const shared::ModValues& mod = params.mod;
    WeightOnly own(mod, at);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float delta[4] = {0, 0, 0, 0};
      if constexpr (kSoftmax) numbers.read(i, delta);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int j = 2 * i + half;
        if constexpr (kConfig.frugal) own = here<WeightOnly>(mod, at);
        float four[4], factors[4];
        if constexpr (!kOne) read_factors(x, j, factors);
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int q_idx = at.query(j, e);
          own.set_query(mod, at, q_idx);
#pragma unroll
          for (int r = 0; r < 2; ++r) {
            const int n = 4 * j + 2 * r + e;
            float of_weight = d_p[n];
            if constexpr (kConfig.weighted) of_weight *= own.weight(mod, at, q_idx, r);
            if constexpr (kConfig.dropped) of_weight = drops.weighed(n, of_weight);
            const float ds = (kOne ? 1.0F : factors[2 * r + e]) * (of_weight - delta[2 * half + e]);
            const bool attends = !(kCut || !kPlain) || (bits >> n & 1) != 0;
            four[2 * r + e] = attends ? ds : 0.0F;
          }
        }
#pragma unroll
        for (int r = 0; r < 2; ++r) d_s[2 * j + r] = ptx::pack<kConfig.f16>(four[2 * r], four[2 * r + 1]);
      }
    }
  }

  /// dP becomes dt, in f32, and `of_weights` p dP, if there is room for it; products s stay as they are. `lse`,
  /// `deltas`: where the thread's begin. kFar, low: as weigh() has them. Elements that do not attend keep whatever is
  /// computed of them. Returns the bits without the elements whose t is -inf.
  template <bool kFar, int kOfWeights>
  static __device__ __forceinline__ unsigned gradients(const float (&s)[32], float (&d_p)[32],
                                                       float (&of_weights)[kOfWeights], unsigned bits,
                                                       const TransposedDrops& drops, const Params& params,
                                                       const TransposedOrigin& at, const Numbers& lse,
                                                       const Numbers& deltas, [[maybe_unused]] ptx::Address low) {
    const shared::ModValues& mod = params.mod;
    Mods own(mod, at);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float of_lse[4] = {0, 0, 0, 0}, delta[4] = {0, 0, 0, 0}, lows[4] = {0, 0, 0, 0};
      if constexpr (kSoftmax) lse.read(i, of_lse), deltas.read(i, delta);
      if constexpr (kFar) read_low(low, i, lows);
#pragma unroll
      for (int of_four = 0; of_four < 4; ++of_four) {
        const int j = 2 * i + of_four / 2, e = of_four % 2;
        if constexpr (kConfig.frugal) own = here<Mods>(mod, at);
        const int q_idx = at.query(j, e);
        own.set_query(mod, at, q_idx);
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const int n = 4 * j + 2 * r + e;
          float slope = 1, weight;
          float t = own.template t<kFar>(s[n], slope, params, at, q_idx, r);
          if (t == -ptx::infinity()) bits &= ~(1U << n);
          if constexpr (kFar) t = far_power(t, of_lse[of_four], lows[of_four], params);
          const float factor = factor_of(t, kFar ? 0.0F : of_lse[of_four], weight);
          if constexpr (kOfWeights == 32) of_weights[n] = weight * d_p[n];
          float weighted = d_p[n];
          if constexpr (kConfig.weighted) weighted *= own.weight(mod, at, q_idx, r);
          if constexpr (kConfig.dropped) weighted = drops.weighed(n, weighted);
          d_p[n] = factor * (weighted - delta[of_four]);
        }
      }
    }
    return bits;
  }

 private:
  /// In a block of rows that is far: four low numbers of a thread, its rows 4 i to 4 i + 3; and the power of two of a
  /// weight. x: what t() leaves.
  static __device__ __forceinline__ void read_low(ptx::Address low, int i, float (&four)[4]) {
    ptx::load_floats(low + 64 * i, four);
  }
  static __device__ __forceinline__ float far_power(float x, float first, float low, const Params& params) {
    return fmaf(x - first, kPlain ? params.scale_log2 : ptx::kLog2E, -low);
  }

  /// The thread's mods, made anew: their numbers of its keys are computed here instead of being kept beside all
  /// products.
  template <class Own>
  static __device__ __forceinline__ Own here(const shared::ModValues& mod, TransposedOrigin at) {
    asm volatile("" : "+r"(at.batch), "+r"(at.head), "+r"(at.kv_idx)::"memory");
    return Own(mod, at);
  }

  /// Stands in for a mod that the kernel does not compute.
  struct None {
    __device__ __forceinline__ None(const shared::ModValues&, const TransposedOrigin&) {}
    __device__ __forceinline__ void set_query(const shared::ModValues&, const TransposedOrigin&, int) {}
  };
  template <bool kThere, class Mod>
  struct Maybe : None {
    using None::None;
  };
  template <class Mod>
  struct Maybe<true, Mod> : TransposedMod<Mod> {
    using TransposedMod<Mod>::TransposedMod;
  };

  struct WeightOnly : Maybe<kConfig.weighted, WeightMod> {
    using Base = Maybe<kConfig.weighted, WeightMod>;
    using Base::Base;
    __device__ __forceinline__ float weight(const shared::ModValues& mod, const TransposedOrigin& at, int q_idx,
                                            int r) const {
      if constexpr (!kConfig.weighted) return 1;
      return weight_element(mod, this->uniform, this->row, this->column[r], at.batch, at.head, q_idx, at.key(r));
    }
  };

  struct Mods {
    Maybe<kAdded, OffsetMod> offset;
    Maybe<kMapped, ScoreMod> score;
    Maybe<kMapped, DerivativeMod> derivative;
    WeightOnly weights;

    __device__ __forceinline__ Mods(const shared::ModValues& mod, const TransposedOrigin& at)
        : offset(mod, at), score(mod, at), derivative(mod, at), weights(mod, at) {}
    __device__ __forceinline__ void set_query(const shared::ModValues& mod, const TransposedOrigin& at, int q_idx) {
      offset.set_query(mod, at, q_idx);
      score.set_query(mod, at, q_idx);
      derivative.set_query(mod, at, q_idx);
      weights.set_query(mod, at, q_idx);
    }
    __device__ __forceinline__ float weight(const shared::ModValues& mod, const TransposedOrigin& at, int q_idx,
                                            int r) const {
      return weights.weight(mod, at, q_idx, r);
    }
    /// t, in powers of two where the normalizer takes exponentials, and the derivative of a mapped score. kFar: t as it
    /// is, or the product where t is a multiple of it.
    template <bool kFar>
    __device__ __forceinline__ float t(float product, float& slope, const Params& params, const TransposedOrigin& at,
                                       int q_idx, int r) const {
      constexpr float kOwnUnit = kFar ? 1.0F : kUnit;
      if constexpr (kPlain) {
        return kFar ? product : product * params.scale_log2;
      } else if constexpr (kAdded) {
        return fmaf(product, kFar ? params.scale : params.scale_log2,
                    kOwnUnit * offset_element(params.mod, offset.uniform, offset.row, offset.column[r], at.batch,
                                              at.head, q_idx, at.key(r)));
      } else {
        const float s = product * params.scale;
        slope = derivative_element(params.mod, derivative.uniform, derivative.row, derivative.column[r], s, at.batch,
                                   at.head, q_idx, at.key(r));
        return kOwnUnit * score_element(params.mod, score.uniform, score.row, score.column[r], s, at.batch, at.head,
                                        q_idx, at.key(r));
      }
    }
  };

  /// X, and the weight.
  static __device__ __forceinline__ float factor_of(float t, float lse, float& weight) {
    if constexpr (kSoftmax) {
      weight = ptx::exp2_fast(t - lse);
      return weight;
    } else if constexpr (kSigmoid) {
      weight = ptx::reciprocal(1.0F + ptx::exp2_fast(-t));
      return fmaf(-weight, weight, weight);
    } else {
      weight = t;
      return 1;
    }
  }
};

}  // namespace heddle
