// The user's mods on the scores and weights in registers, element by element (generated, see
// device_text/expression_text.h: functions called mask_..., offset_..., score_... and weight_...), and the end of the
// keys.
#pragma once

#include "fragments/elements.cuh"
#include "fragments/streamed_tile.cuh"
#include "ptx/math.cuh"
#include "shared/mod_forms.h"

namespace heddle {

using shared::ScoreForm;

/// Cuts the block after `keys` keys: scores past the end become -inf. s: registers, 64 x kv_block.
template <auto kConfig>
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

/// Scores that the mask_mod excludes become -inf.
template <auto kConfig>
__device__ __forceinline__ void mask_scores(float (&s)[kConfig.kv_block / 2], const shared::ModValues& mod,
                                            const BlockOrigin& at) {
  for_elements<MaskMod, MaskColumns, kConfig.kv_block>(
      mod, at,
      [&](int i, const MaskUniform& uniform, const MaskRow& row, const MaskColumn& column, int q_idx, int kv_idx) {
        if (!mask_element(mod, uniform, row, column, at.batch, at.head, q_idx, kv_idx)) s[i] = -ptx::infinity();
      });
}

/// Products of queries and keys become t, in the forms that are computed element by element. `streamed`: the tile of a
/// streamed capture, or its first part. next_streamed() gives that part back and returns the next one's address.
template <auto kConfig, class Next>
__device__ __forceinline__ void map_scores(float (&s)[kConfig.kv_block / 2], const shared::ModValues& mod, float scale,
                                           const BlockOrigin& at, ptx::Address streamed, Next&& next_streamed) {
  constexpr bool kStreams = kConfig.streamed_bytes > 0;
  StreamedTile<kConfig, StreamedStorage> tile(streamed);
  const auto streamed_value = [&](int i) {
    if (!kStreams) return 0.0F;
    constexpr int kPart = kConfig.kv_block / 2 / kConfig.streamed_parts;  // registers
    if (i > 0 && i % kPart == 0) {
      tile.wait();
      tile = StreamedTile<kConfig, StreamedStorage>(next_streamed());
    }
    if (i % 8 == 0) tile.load(i % kPart / 8);
    return tile.value(i % 8);
  };
  if constexpr (kConfig.scores == ScoreForm::added) {
    for_elements<OffsetMod, OffsetColumns, kConfig.kv_block>(
        mod, at,
        [&](int i, const OffsetUniform& uniform, const OffsetRow& row, const OffsetColumn& column, int q_idx,
            int kv_idx) {
          const float offset =
              offset_element(mod, uniform, row, column, streamed_value(i), at.batch, at.head, q_idx, kv_idx);
          s[i] = fmaf(s[i], scale, offset);
        });
  } else {
    for_elements<ScoreMod, ScoreColumns, kConfig.kv_block>(
        mod, at,
        [&](int i, const ScoreUniform& uniform, const ScoreRow& row, const ScoreColumn& column, int q_idx, int kv_idx) {
          s[i] = score_element(mod, uniform, row, column, s[i] * scale, streamed_value(i), at.batch, at.head, q_idx,
                               kv_idx);
        });
  }
  if constexpr (kStreams) tile.wait();
}

/// Multiplies the weights in P by the weight_mod. `some_are_cut`: elements of the block do not attend. A weight that is
/// 0 then stays 0, whatever the weight_mod is; so does the weight of an attending element that is 0 already.
template <auto kConfig>
__device__ __forceinline__ void weigh_scores(float (&p)[kConfig.kv_block / 2], const shared::ModValues& mod,
                                             const BlockOrigin& at, bool some_are_cut) {
  const float cut = some_are_cut ? 0.0F : __int_as_float(0x7fffffff);  // NaN equals none
  for_elements<WeightMod, WeightColumns, kConfig.kv_block>(
      mod, at,
      [&](int i, const WeightUniform& uniform, const WeightRow& row, const WeightColumn& column, int q_idx,
          int kv_idx) {
        const float weight = weight_element(mod, uniform, row, column, at.batch, at.head, q_idx, kv_idx);
        if (p[i] != cut) p[i] *= weight;
      });
}

}  // namespace heddle
