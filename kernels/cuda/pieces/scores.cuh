// What the user's mods do to the scores and weights in registers (generated, see emit/expression_text.h: functions
// called mask_..., score_..., offset_..., slope_... and weight_...), and the end of the keys.
#pragma once

#include "pieces/elements.cuh"
#include "pieces/memory.cuh"
#include "ptx/math.cuh"

namespace heddle {

using shared::ScoreForm;

/// Of the block's keys only so many are there; what lies past the end becomes -inf. s: registers, 64 x kv_block.
template <ForwardSm90Config kConfig>
__device__ __forceinline__ void cut_scores(float (&s)[kConfig.kv_block / 2], int keys) {
  const int left = keys - 2 * (threadIdx.x & 3);
#pragma unroll
  for (int j = 0; j < kConfig.kv_block / 8; ++j) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      if (8 * j + e >= left) s[4 * j + e] = s[4 * j + 2 + e] = -ptx::infinity();
    }
  }
}

/// What the mask_mod excludes becomes -inf.
template <ForwardSm90Config kConfig>
__device__ __forceinline__ void mask_scores(float (&s)[kConfig.kv_block / 2], const shared::ModValues& mod,
                                            const BlockPlace& at) {
  for_elements<MaskMod, MaskColumns, kConfig.kv_block>(
      mod, at,
      [&](int i, const MaskUniform& uniform, const MaskRow& row, const MaskColumn& column, int q_idx, int kv_idx) {
        if (!mask_element(mod, uniform, row, column, at.batch, at.head, q_idx, kv_idx)) s[i] = -ptx::infinity();
      });
}

/// Products of queries and keys become t, in the forms that are computed element by element.
template <ForwardSm90Config kConfig>
__device__ __forceinline__ void map_scores(float (&s)[kConfig.kv_block / 2], const shared::ModValues& mod, float scale,
                                           const BlockPlace& at) {
  if constexpr (kConfig.scores == ScoreForm::added) {
    for_elements<OffsetMod, OffsetColumns, kConfig.kv_block>(
        mod, at,
        [&](int i, const OffsetUniform& uniform, const OffsetRow& row, const OffsetColumn& column, int q_idx,
            int kv_idx) {
          s[i] = fmaf(s[i], scale, offset_element(mod, uniform, row, column, at.batch, at.head, q_idx, kv_idx));
        });
  } else {
    for_elements<ScoreMod, ScoreColumns, kConfig.kv_block>(
        mod, at,
        [&](int i, const ScoreUniform& uniform, const ScoreRow& row, const ScoreColumn& column, int q_idx,
            int kv_idx) {
          s[i] = score_element(mod, uniform, row, column, s[i] * scale, at.batch, at.head, q_idx, kv_idx);
        });
  }
}

/// The weights in P are multiplied by the weight_mod.
template <ForwardSm90Config kConfig>
__device__ __forceinline__ void weigh_scores(float (&p)[kConfig.kv_block / 2], const shared::ModValues& mod,
                                             const BlockPlace& at) {
  for_elements<WeightMod, WeightColumns, kConfig.kv_block>(
      mod, at,
      [&](int i, const WeightUniform& uniform, const WeightRow& row, const WeightColumn& column, int q_idx,
          int kv_idx) {
        p[i] *= weight_element(mod, uniform, row, column, at.batch, at.head, q_idx, kv_idx);
      });
}

/// A term of the exponents, in powers of two, that all elements of a row share (shifted), or that grows by a slope from
/// one key to the next (tilted): of the thread's two rows, at its first column. Registers.
template <ScoreForm kForm>
struct ScoreTilt {
  static constexpr bool kTilted = kForm == ScoreForm::tilted;
  static constexpr bool kAny = kTilted || kForm == ScoreForm::shifted;
  float base[kAny ? 2 : 1], slope[kTilted ? 2 : 1];

  __device__ __forceinline__ void set(const shared::ModValues& mod, const BlockPlace& at) {
    if constexpr (kAny) {
      const int kv_idx = at.kv_first + 2 * (threadIdx.x & 3);
      const OffsetUniform uniform = offset_uniform(mod, at.batch, at.head);
      const OffsetColumn column = offset_column(mod, uniform, at.batch, at.head, kv_idx);
      const SlopeUniform slope_of_head = slope_uniform(mod, at.batch, at.head);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int q_idx = at.q_row + 8 * r + mod.q_start;
        const OffsetRow row = offset_row(mod, uniform, at.batch, at.head, q_idx);
        base[r] = offset_element(mod, uniform, row, column, at.batch, at.head, q_idx, kv_idx) * ptx::kLog2E;
        if constexpr (kTilted) {
          const SlopeRow slope_of_row = slope_row(mod, slope_of_head, at.batch, at.head, q_idx);
          slope[r] =
              slope_element(mod, slope_of_head, slope_of_row, SlopeColumn(), at.batch, at.head, q_idx, kv_idx) *
              ptx::kLog2E;
        }
      }
    }
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
