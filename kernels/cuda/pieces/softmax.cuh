// The softmax of one warpgroup's rows, with an optimistic maximum.
//
// Any reference m serves as long as nothing overflows: f32 and bf16 have the same range of exponents. So a row takes the
// maximum of the first block in which it attends and keeps it: no maximum, no shuffle, no rescaling for most later
// blocks. Two checks, on sums that are formed anyway, make that safe:
//
// - A later block with a weight of more than about a quarter of the row's sum: m moves to it, and p, l and o are rescaled,
//   so that its p is exactly 1. Rounded to 8 bits it would cost accuracy that plain softmax, whose largest p is 1, has.
// - When the tile ends, a sum of 2^64 or more (f16: 2^15), NaN, or an infinite output says that a block's scores were too
//   far above m. The tile is computed again, safely: with the running maximum.
//
// m never exceeds the true maximum by more than rounding, so nothing vanishes that counted.
#pragma once

#include "ptx/math.cuh"

namespace heddle {

/// Registers. Index 0: the thread's row l / 4 of its warp's 16, 1: the row 8 further down.
struct RowSums {
  float m[2] = {-ptx::infinity(), -ptx::infinity()};  // the reference, in powers of two
  float l[2] = {0, 0};                                // the sum of exponentials in this thread's columns
};

template <int kColumns, bool kF16>
struct Softmax {
  RowSums rows;
  float rescale[2] = {1, 1};  // what the last step multiplied l by; o is yet to be
  float most[2];              // the largest sum of eight weights in the last step
  float limit[2];             // what that may be before m has to move
  bool safe = false;          // of the warp

  // P up to this, times the values, is inside the storage type's and O's range; a row sum, at the end of a tile, too.
  static constexpr float kLargestJump = kF16 ? 32768.0F : 1099511627776.0F;
  static constexpr float kLargestSum = kF16 ? 32768.0F : 18446744073709551616.0F;
  static constexpr float kShare = 0.25F;

  /// S, a product of queries and keys, becomes P, not normalised.
  __device__ __forceinline__ void step(float (&s)[kColumns / 2], float scale_log2) {
    float(&m)[2] = rows.m, (&l)[2] = rows.l;
    rescale[0] = rescale[1] = 1;
    const bool exact = safe | __any_sync(~0U, (m[0] == -ptx::infinity()) | (m[1] == -ptx::infinity()));
    if (exact) raise_to_scores(s, scale_log2);
    const float offset[2] = {m[0] == -ptx::infinity() ? 0.0F : -m[0], m[1] == -ptx::infinity() ? 0.0F : -m[1]};
    most[0] = most[1] = 0;
    float held[2];  // the sums of four weights that wait for four more
#pragma unroll
    for (int c = 0; c < kColumns / 16; ++c) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float(&p)[kColumns / 2] = s;
        const int at[4] = {8 * c + 2 * r, 8 * c + 2 * r + 1, 8 * c + 4 + 2 * r, 8 * c + 5 + 2 * r};
#pragma unroll
        for (const int i : at) p[i] = ptx::exp2_fast(fmaf(p[i], scale_log2, offset[r]));
        const float four = (p[at[0]] + p[at[1]]) + (p[at[2]] + p[at[3]]);
        if (c % 2 == 0 && c + 1 < kColumns / 16) {
          held[r] = four;
        } else {
          const float sum = c % 2 == 0 ? four : held[r] + four;
          l[r] += sum;
          most[r] = ptx::max_positive(most[r], sum);
        }
      }
    }
    if (exact) set_limit();
  }

  /// After a step that was not its tile's first: m moved, or must.
  __device__ __forceinline__ bool moves() const {
    return safe |
           __any_sync(~0U, (rescale[0] != 1.0F) | (rescale[1] != 1.0F) | (most[0] > limit[0]) | (most[1] > limit[1]));
  }
  /// Then: P is brought to the new m, and rescale says what o is to be multiplied by.
  __device__ __forceinline__ void settle(float (&p)[kColumns / 2]) {
    if (safe) return;
    raise_to_weights(p);
    set_limit();
  }

  /// Holds the exponentials where they are: the compiler may not move them below a wait that stands after this. (It
  /// cannot know that a sum of exponentials is never negative.)
  __device__ __forceinline__ void pin(unsigned shared_address) const {
    asm volatile(
        "{\n"
        ".reg .pred never;\n"
        "setp.lt.f32 never, %0, %1;\n"
        "@never st.shared.f32 [%2], %0;\n"
        "}" ::"f"(rows.l[0] + rows.l[1]),
        "f"(-1.0F), "r"(shared_address)
        : "memory");
  }

 private:
  __device__ __forceinline__ void set_limit() {
    limit[0] = kShare * ptx::row_sum(rows.l[0]);
    limit[1] = kShare * ptx::row_sum(rows.l[1]);
  }

  /// m becomes the running maximum.
  __device__ __forceinline__ void raise_to_scores(const float (&s)[kColumns / 2], float scale_log2) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float found = s[2 * r];
#pragma unroll
      for (int j = 0; j < kColumns / 8; ++j) found = fmaxf(found, fmaxf(s[4 * j + 2 * r], s[4 * j + 2 * r + 1]));
      const float candidate = ptx::row_max(found) * scale_log2, before = rows.m[r];
      if (candidate > before) {
        rescale[r] = before == -ptx::infinity() ? 1.0F : ptx::exp2_fast(before - candidate);
        rows.m[r] = candidate;
        rows.l[r] *= rescale[r];
      }
    }
  }

  /// The same, where the scores are gone and P has come: the largest weight becomes 1.
  __device__ __forceinline__ void raise_to_weights(float (&p)[kColumns / 2]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float found = 0;
#pragma unroll
      for (int j = 0; j < kColumns / 8; ++j) {
        found = ptx::max_positive(found, p[4 * j + 2 * r], p[4 * j + 2 * r + 1]);
      }
      found = ptx::row_max(found);
      if (!(found > 1.0F)) continue;
      if (found > kLargestJump) {
        rows.l[r] = ptx::infinity();  // the tile will be repeated
        continue;
      }
      const float factor = ptx::reciprocal(found);
      rows.m[r] += __log2f(found);
      rows.l[r] *= factor;
      rescale[r] *= factor;
#pragma unroll
      for (int j = 0; j < kColumns / 8; ++j) {
        p[4 * j + 2 * r] *= factor;
        p[4 * j + 2 * r + 1] *= factor;
      }
    }
  }
};

}  // namespace heddle
