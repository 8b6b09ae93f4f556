// From scores to the terms of the gradients. With t = score_mod(s), p its weight, w = weight_mod, dP = dO v:
//
//   dv of  p w,   dq and dk of  ds = dt/ds X (w dP - delta),   X = p (softmax), p - p^2 (sigmoid), 1 (none)
//
// Both come from one visit of an element, when S and dP are there: each mod is computed once, and both stay in the
// registers of S and dP. An element that does not attend, or whose t is -inf, gives 0 to both.
#pragma once

#include "families/backward_mma/shared/backward_mma_config.h"
#include "families/backward_mma/shared/backward_mma_params.h"
#include "portable/rows/row_mods.cuh"

namespace heddle::portable {

using shared::Normalizer;
using shared::ScoreForm;

/// A row's part of a mod: that of a query; or of a key.
template <class Mod, bool kOfKeys>
struct OwnPart {
  typename Mod::Row of;
};
template <class Mod>
struct OwnPart<Mod, true> {
  typename Mod::Column of;
};

/// A mod's parts that a thread keeps for its rows, and finds for each of its columns. `M`: the generated text's struct.
template <class M, bool kOfKeys, int kRows>
class HeldMod {
 public:
  using Mod = typename M::Mod;

  /// `index_of(i)`: q_idx, or kv_idx, of the thread's row i.
  template <class IndexOf>
  __device__ __forceinline__ void begin(const shared::ModValues& mod, int batch, int head, IndexOf&& index_of) {
    uniform_ = Mod::uniform(mod, batch, head);
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      if constexpr (kOfKeys) {
        own_[i].of = Mod::column(mod, uniform_, batch, head, index_of(i));
      } else {
        own_[i].of = Mod::row(mod, uniform_, batch, head, index_of(i));
      }
    }
  }
  /// The part of the step's row with that index.
  __device__ __forceinline__ auto across(const shared::ModValues& mod, int batch, int head, int index) const {
    if constexpr (kOfKeys) {
      return Mod::row(mod, uniform_, batch, head, index);
    } else {
      return Mod::column(mod, uniform_, batch, head, index);
    }
  }
  /// The element of row i. `rest`: the score, if the mod takes it, then b, h, q_idx and kv_idx.
  template <class Across, class... Rest>
  __device__ __forceinline__ auto element(const shared::ModValues& mod, int i, const Across& other,
                                          const Rest&... rest) const {
    if constexpr (kOfKeys) {
      return M::element(mod, uniform_, other, own_[i].of, rest...);
    } else {
      return M::element(mod, uniform_, own_[i].of, other, rest...);
    }
  }

 private:
  typename Mod::Uniform uniform_;
  OwnPart<Mod, kOfKeys> own_[kRows];
};

/// A mod that the kernel does not compute.
template <bool kOfKeys, int kRows>
class HeldMod<NoMod, kOfKeys, kRows> {
 public:
  template <class IndexOf>
  __device__ __forceinline__ void begin(const shared::ModValues&, int, int, IndexOf&&) {}
  __device__ __forceinline__ int across(const shared::ModValues&, int, int, int) const { return 0; }
};

/// A row of queries: its lse in powers of two, and its delta. With lse in two words `lse` is what scores are compared
/// with, and `low` what is left of lse in powers of two.
template <class Real>
struct QueryNumbers {
  Real lse, delta, low;
};

/// Tensors of 8 bits: the factors of products of q and k, of products of v and dO, and of what ds and p w become before
/// they are rounded. Others multiply the finished gradients.
struct ElementFactors {
  float scores, values, d_s, p_w;
};

/// The indices of an element.
struct ElementIndices {
  int batch, head, q_idx, kv_idx;
};

template <auto kConfig, class F, class Mods>
class BackwardElements {
 public:
  using Real = typename F::Real;
  static constexpr int kRows = kConfig.row_fragments * F::kOwnRows;
  static constexpr bool kSoftmax = kConfig.normalizer == Normalizer::softmax;
  static constexpr bool kSigmoid = kConfig.normalizer == Normalizer::sigmoid;
  static constexpr bool kRest = kConfig.lse_rest;
  /// Rows past the end reach sums that others have, too.
  static constexpr bool kCutsRows = kConfig.all_sequences || kConfig.adds_d_q;
  static_assert(kSoftmax || !kRest);
  static constexpr bool kPlain = kConfig.scores == ScoreForm::plain, kMapped = kConfig.scores == ScoreForm::mapped;

  template <class IndexOf>
  __device__ __forceinline__ void begin(const shared::ModValues& mod, int batch, int head, IndexOf&& index_of) {
    mask_.begin(mod, batch, head, index_of);
    offset_.begin(mod, batch, head, index_of);
    score_.begin(mod, batch, head, index_of);
    derivative_.begin(mod, batch, head, index_of);
    weight_.begin(mod, batch, head, index_of);
  }

  /// A column of the thread's elements: s becomes p w, and d_p becomes ds. kCut: not all attend; `inside`: the column
  /// is a row of the sequence; `partial`: the mask decides. `at(i)` and `numbers(i)` are the row i's.
  /// `sums`: the pass's ReadSums, which take pairs if `adds`, and rows of the sequence alone, as `is_row(i)` says:
  /// nothing else of a row past the end is stored, unless other sequences have it, too.
  template <bool kCut, class ScoreOf, class SlopeOf, class At, class Numbers, class IsRow, class Sums>
  __device__ __forceinline__ void column(const shared::BackwardMmaParams& params, bool inside, bool partial, int index,
                                         ScoreOf&& s, SlopeOf&& d_p, At&& at, Numbers&& numbers, IsRow&& is_row,
                                         bool adds, Sums& sums, const ElementFactors& factors) const {
    const shared::ModValues& mod = params.mod;
    const shared::BackwardScales<Real>& scales = shared::scales_of<Real>(params);
    const ElementIndices any = at(0);
    const auto of_mask = mask_.across(mod, any.batch, any.head, index);
    const auto of_offset = offset_.across(mod, any.batch, any.head, index);
    const auto of_score = score_.across(mod, any.batch, any.head, index);
    const auto of_derivative = derivative_.across(mod, any.batch, any.head, index);
    const auto of_weight = weight_.across(mod, any.batch, any.head, index);
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const ElementIndices e = at(i);
      const QueryNumbers<Real> row = numbers(i);
      bool attends = !kCut || (inside && (!kCutsRows || is_row(i)));
      if constexpr (kCut && kConfig.masked) {
        if (partial) attends = attends && mask_.element(mod, i, of_mask, e.batch, e.head, e.q_idx, e.kv_idx);
      }
      const Real product = kConfig.descaled ? s(i) * static_cast<Real>(factors.scores) : s(i);
      Real slope = 1, t;  // t: in powers of two where exponentials are taken of it; kRest: after it met row.lse
      if constexpr (kPlain) {
        t = kRest ? product : kSoftmax ? F::fused(product, scales.scale_log2, -row.lse) : product * scales.scale_log2;
      } else {
        if constexpr (kMapped) {
          const Real score = product * scales.scale;
          slope = derivative_.element(mod, i, of_derivative, score, e.batch, e.head, e.q_idx, e.kv_idx);
          t = kUnit * score_.element(mod, i, of_score, score, e.batch, e.head, e.q_idx, e.kv_idx);
        } else {
          t = F::fused(product, kRest ? scales.scale : scales.scale_log2,
                       kUnit * offset_.element(mod, i, of_offset, e.batch, e.head, e.q_idx, e.kv_idx));
        }
        attends = attends && t != -F::infinity();
        if constexpr (kSoftmax && !kRest) t -= row.lse;
      }
      if constexpr (kRest) t = F::fused(t - row.lse, kPlain ? scales.scale_log2 : kLog2E, -row.low);
      Real weight = t, factor = 1;
      if constexpr (kSoftmax) {
        factor = weight = F::exp2(t);
      } else if constexpr (kSigmoid) {
        weight = F::reciprocal(Real(1) + F::exp2(-t));
        factor = F::fused(-weight, weight, weight);
      }
      Real of_weight_mod = 1;
      if constexpr (kConfig.weighted) {
        of_weight_mod = weight_.element(mod, i, of_weight, e.batch, e.head, e.q_idx, e.kv_idx);
      }
      constexpr bool kChosen = kCut || !kPlain;
      s(i) = !kChosen || attends ? weight * of_weight_mod : Real(0);
      if constexpr (kConfig.descaled) s(i) *= static_cast<Real>(factors.p_w);
      if constexpr (kConfig.d_qk) {
        if constexpr (kConfig.descaled) d_p(i) *= static_cast<Real>(factors.values);
        const Real of_weights = kConfig.weighted ? d_p(i) * of_weight_mod : d_p(i);
        const Real d_t = factor * (kSoftmax ? of_weights - row.delta : of_weights);
        if constexpr (Sums::kAny) {
          const bool counts = (!kChosen || attends) && is_row(i) && adds;
          if (counts) sums.add(params, i, e, product * scales.score_scale, d_t, weight * d_p(i));
        }
        d_p(i) = !kChosen || attends ? kMapped ? d_t * slope : d_t : Real(0);
        if constexpr (kConfig.descaled) d_p(i) *= static_cast<Real>(factors.d_s);
      }
    }
  }

 private:
  static constexpr Real kLog2E = static_cast<Real>(1.44269504088896341);
  static constexpr Real kUnit = kConfig.normalizer == Normalizer::none || kRest ? Real(1) : kLog2E;

  template <class M>
  using Held = HeldMod<M, kConfig.of_keys, kRows>;

  Held<typename Mods::Mask> mask_;
  Held<typename Mods::Offset> offset_;
  Held<typename Mods::Score> score_;
  Held<typename Mods::Derivative> derivative_;
  Held<typename Mods::Weight> weight_;
};

}  // namespace heddle::portable
