// What the user's mods do to the scores and weights in registers (generated, see emit/expression_text.h: functions
// called mask_..., offset_..., slope_..., score_... and weight_...), and the end of the keys.
#pragma once

#include "pieces/elements.cuh"
#include "pieces/memory.cuh"
#include "pieces/streamed.cuh"
#include "ptx/math.cuh"

namespace heddle {

using shared::Normalizer;
using shared::ScoreForm;

/// Normalizers that take exponentials have t in powers of two.
constexpr float t_unit(Normalizer normalizer) { return normalizer == Normalizer::none ? 1.0F : ptx::kLog2E; }

__device__ __forceinline__ float load_shared(ptx::Address address) {
  float value;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(value) : "r"(address) : "memory");
  return value;
}

__device__ __forceinline__ void store_shared(ptx::Address address, float value) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(address), "f"(value) : "memory");
}

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

/// Whether all the warp's scores are so small that the cap's polynomial serves. (NaN is: it stays.)
template <ForwardSm90Config kConfig>
__device__ __forceinline__ bool are_far_from_cap(const float (&s)[kConfig.kv_block / 2], float limit) {
  float largest = 0;
#pragma unroll
  for (int i = 0; i < kConfig.kv_block / 2; i += 2) largest = fmaxf(largest, fabsf(s[i]) + fabsf(s[i + 1]));
  return __all_sync(~0U, largest <= limit);
}

/// Products of queries and keys become t in powers of two, capped: c tanh(x) = c - 2 c / (1 + e^2x), to 2^-22 c.
/// `factor`: of products in 8 bits.
template <ForwardSm90Config kConfig>
__device__ __forceinline__ void cap_scores(float (&s)[kConfig.kv_block / 2], const shared::ForwardSm90Params& params,
                                           float factor) {
  float inside = 2 * ptx::kLog2E * params.cap_inside;
  if constexpr (kConfig.fp8()) inside *= factor;
#pragma unroll
  for (int i = 0; i < kConfig.kv_block / 2; ++i) {
    s[i] = fmaf(-2 * params.cap_outside, ptx::reciprocal(1 + ptx::exp2_fast(s[i] * inside)), params.cap_outside);
  }
}

/// Products of queries and keys become t, in the forms that are computed element by element. `streamed`: the tile of a
/// streamed capture, if one is, or its first part; next_streamed(): that has been read, where is the next one?
template <ForwardSm90Config kConfig, class Next>
__device__ __forceinline__ void map_scores(float (&s)[kConfig.kv_block / 2], const shared::ModValues& mod, float scale,
                                           const BlockPlace& at, ptx::Address streamed, Next&& next_streamed) {
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

/// The weights in P are multiplied by the weight_mod.
template <ForwardSm90Config kConfig>
__device__ __forceinline__ void weigh_scores(float (&p)[kConfig.kv_block / 2], const shared::ModValues& mod,
                                             const BlockPlace& at) {
  for_elements<WeightMod, WeightColumns, kConfig.kv_block>(
      mod, at,
      [&](int i, const WeightUniform& uniform, const WeightRow& row, const WeightColumn& column, int q_idx,
          int kv_idx) { p[i] *= weight_element(mod, uniform, row, column, at.batch, at.head, q_idx, kv_idx); });
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
  __device__ __forceinline__ void begin_tile(const shared::ModValues& mod, const BlockPlace& at) {
    uniform = offset_uniform(mod, at.batch, at.head);
    if constexpr (kTilted) slope_of_head = slope_uniform(mod, at.batch, at.head);
  }
  /// Before each block.
  __device__ __forceinline__ void set(const shared::ModValues& mod, const BlockPlace& at) {
    const int kv_idx = at.kv_first + 2 * (threadIdx.x & 3);
    const OffsetColumn column = offset_column(mod, uniform, at.batch, at.head, kv_idx);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int q_idx = at.q_idx + 8 * r;
      const OffsetRow row = offset_row(mod, uniform, at.batch, at.head, q_idx);
      base[r] = offset_element(mod, uniform, row, column, 0.0F, at.batch, at.head, q_idx, kv_idx) * kUnit;
      if constexpr (kTilted) {
        const SlopeRow slope_of_row = slope_row(mod, slope_of_head, at.batch, at.head, q_idx);
        slope[r] =
            slope_element(mod, slope_of_head, slope_of_row, SlopeColumn(), at.batch, at.head, q_idx, kv_idx) * kUnit;
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

/// The offset of two positions that are so far apart. (It reads nothing else of them.)
__device__ __forceinline__ float term_of_distance(const shared::ModValues& mod, const BlockPlace& at, int distance) {
  const OffsetUniform uniform = offset_uniform(mod, at.batch, at.head);
  const OffsetRow row = offset_row(mod, uniform, at.batch, at.head, 0);
  const OffsetColumn column = offset_column(mod, uniform, at.batch, at.head, distance);
  return offset_element(mod, uniform, row, column, 0.0F, at.batch, at.head, 0, distance);
}

/// Distant: the block's one term, or a table in shared memory of all that the warpgroup's rows have there: entry i is
/// that of the distance i - 63 between the first row and the first column; the last two are those far to the right and
/// far to the left. By all threads of the warpgroup.
template <ForwardSm90Config kConfig>
__device__ __forceinline__ void tabulate_distances(ptx::Address table, const shared::ForwardSm90Params& params,
                                                   const BlockPlace& at, int warpgroup, bool new_tile,
                                                   ScoreTilt<kConfig.scores, kConfig.normalizer>& tilt) {
  constexpr int kCount = 63 + kConfig.kv_block;
  constexpr float kUnit = t_unit(kConfig.normalizer);
  const int thread = threadIdx.x & 127;
  const int row = 16 * (thread >> 5) + ((thread & 31) >> 2);
  const int least = at.kv_first - (at.q_idx - row) - 63;
  const bool right = least >= params.flat_from;
  tilt.flat = __any_sync(~0U, right || least + kCount - 1 <= params.flat_to);
  const bool ends = __any_sync(~0U, new_tile);
  if (ends || !tilt.flat) {
    ptx::named_barrier(1 + warpgroup, 128);  // what stood there has been read
    if (ends && thread < 2) {
      store_shared(table + 4 * (kCount + thread),
                   term_of_distance(params.mod, at, thread == 0 ? params.flat_from : params.flat_to) * kUnit);
    }
    if (!tilt.flat) {
#pragma unroll
      for (int first = 0; first < kCount; first += 128) {
        const int i = first + thread;
        if (i < kCount) store_shared(table + 4 * i, term_of_distance(params.mod, at, least + i) * kUnit);
      }
    }
    ptx::named_barrier(1 + warpgroup, 128);
  }
  tilt.base[0] = tilt.base[1] = tilt.flat ? load_shared(table + 4 * (kCount + (right ? 0 : 1))) : 0;
}

/// Products become t in powers of two, or t.
template <ForwardSm90Config kConfig>
__device__ __forceinline__ void add_distances(ptx::Address table, float (&s)[kConfig.kv_block / 2], float scale_log2) {
  const int thread = threadIdx.x & 127;
  const int row = 16 * (thread >> 5) + ((thread & 31) >> 2);
  const ptx::Address own = table + 4 * (63 - row + 2 * (threadIdx.x & 3));
  // Of two rows that are 8 apart, the lower one has what the upper one has 8 columns to the left.
  float before[2] = {load_shared(own - 32), load_shared(own - 28)};
#pragma unroll
  for (int j = 0; j < kConfig.kv_block / 8; ++j) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const float term = load_shared(own + 32 * j + 4 * e);
      s[4 * j + e] = fmaf(s[4 * j + e], scale_log2, term);
      s[4 * j + 2 + e] = fmaf(s[4 * j + 2 + e], scale_log2, before[e]);
      before[e] = term;
    }
  }
}

}  // namespace heddle
