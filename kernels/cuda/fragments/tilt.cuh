// Terms of the exponents that are no element's own (generated: offset_..., slope_...): computed once a block, for the
// thread's rows.
#pragma once

#include "fragments/elements.cuh"
#include "ptx/math.cuh"
#include "shared/mod_forms.h"

namespace heddle {

using shared::Normalizer;
using shared::ScoreForm;

/// Normalizers that take exponentials have t in powers of two.
constexpr float t_unit(Normalizer normalizer) { return normalizer == Normalizer::none ? 1.0F : ptx::kLog2E; }

inline constexpr float kLargestTerm = 3.4028235e38F;
/// A term times `unit`. The largest numbers stay finite: as a bias they mask, but not where all keys have them.
__device__ __forceinline__ float in_units(float term, float unit) {
  const float x = term * unit;
  return fabsf(x) == ptx::infinity() && fabsf(term) != ptx::infinity() ? copysignf(kLargestTerm, term) : x;
}

/// A term of the exponents, in powers of two, that all elements of a row share (shifted; distant, far from or near to
/// the diagonal), or that grows by a slope from one key to the next (tilted): of the thread's two rows, at its first
/// column. Registers.
template <ScoreForm kForm, Normalizer kNormalizer = Normalizer::softmax>
struct ScoreTilt {
  static constexpr float kUnit = t_unit(kNormalizer);
  static constexpr bool kTilted = kForm == ScoreForm::tilted;
  static constexpr bool kAny = kTilted || kForm == ScoreForm::shifted || kForm == ScoreForm::distant;
  float base[kAny ? 2 : 1], slope[kTilted ? 2 : 1];
  OffsetUniform uniform;  // of the tile
  SlopeUniform slope_of_head;
  bool flat;  // distant: the block has one term, the base; else they have been tabulated

  /// Shifted, tilted: before a tile's first block.
  __device__ __forceinline__ void begin_tile(const shared::ModValues& mod, const BlockOrigin& at) {
    uniform = offset_uniform(mod, at.batch, at.head);
    if constexpr (kTilted) slope_of_head = slope_uniform(mod, at.batch, at.head);
  }
  /// Before each block. `unit`: 1 where terms are to stay natural.
  __device__ __forceinline__ void set(const shared::ModValues& mod, const BlockOrigin& at, float unit = kUnit) {
    const int kv_idx = at.kv_first + 2 * (threadIdx.x & 3);
    const OffsetColumn column = offset_column(mod, uniform, at.batch, at.head, kv_idx);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int q_idx = at.q_idx + 8 * r;
      const OffsetRow row = offset_row(mod, uniform, at.batch, at.head, q_idx);
      base[r] = in_units(offset_element(mod, uniform, row, column, 0.0F, at.batch, at.head, q_idx, kv_idx), unit);
      if constexpr (kTilted) {
        const SlopeRow slope_of_row = slope_row(mod, slope_of_head, at.batch, at.head, q_idx);
        slope[r] =
            slope_element(mod, slope_of_head, slope_of_row, SlopeColumn(), at.batch, at.head, q_idx, kv_idx) * unit;
      }
    }
  }
  /// The term joins the scores, which become t in powers of two: before masked ones are cut, so that no term, whatever
  /// it is, comes to those.
  template <int kRegisters>
  __device__ __forceinline__ void fold(float (&s)[kRegisters], float scale_log2) {
#pragma unroll
    for (int i = 0; i < kRegisters; ++i) s[i] = fmaf(s[i], scale_log2, at(i, base[(i >> 1) & 1]));
    base[0] = base[1] = 0;
    if constexpr (kTilted) slope[0] = slope[1] = 0;
  }
  /// Of register i's score, for a row whose base (less m, maybe) is `from`.
  __device__ __forceinline__ float at(int i, float from) const {
    if constexpr (kTilted) {
      return fmaf(slope[(i >> 1) & 1], static_cast<float>(8 * (i >> 2) + (i & 1)), from);
    } else {
      return from;
    }
  }
};

}  // namespace heddle
