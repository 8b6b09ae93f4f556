// The softmax of one warpgroup's rows, with an optimistic maximum.
//
// Any reference m is right as long as nothing overflows, because f32 and bf16 have the same range of exponents. So a
// row takes the maximum of the first block in which it attends, and keeps it: most later blocks need no maximum, no
// shuffle and no rescaling. Two checks, on sums that are formed anyway, make that safe:
//
// - If a later block has a weight of more than about a quarter of the row's sum, m moves to that weight, and p, l and o
//   are rescaled. Its p is then exactly a power of two. Otherwise its rounding to 8 bits would cost accuracy that plain
//   softmax has, whose largest p is 1.
// - If, when the tile ends, a sum is 2^64 or more or NaN, or an output is infinite, then a block's scores were too far
//   above m. The tile is computed again, safely: with the running maximum.
//
// Where scores are so large that m = fl(M c) is off by more than a weight can bear (M the row's largest score, c what
// makes powers of two of it), or that M c leaves f32's range (masks that add the lowest number to a whole row), a row
// makes its tile safe from its first block on. In a safe tile m is M itself, and exponents are (s - M) c: the
// difference is exact where it counts. All scores of a safe tile therefore have one unit (Consumer::attend).
//
// m never exceeds the true maximum by more than rounding, so no weight that counts vanishes. Two types need a distance
// between m and the maximum besides:
// - f16, whose normal numbers end at 2^-14: 10 powers of two (in safe mode as many as the weights' bound leaves), so
//   that what is left of a row counts if a weight_mod drops its largest weights.
// - e4m3, from 2^-6 to 448: 5, so that eight equal weights may still pass together (in safe mode 8, since no weight is
//   larger there).
#pragma once

#include "fragments/lane_reductions.cuh"
#include "fragments/tilt.cuh"
#include "ptx/math.cuh"
#include "shared/storage.h"

namespace heddle {

/// Registers. Index 0: the thread's row l / 4 of its warp's 16, 1: the row 8 further down.
struct RowSums {
  float m[2] = {-ptx::infinity(), -ptx::infinity()};  // the reference, in powers of two; safe: the largest score
  float l[2] = {0, 0};                                // the sum of exponentials in this thread's columns
};

/// The range of weights in P's type.
struct WeightRange {
  bool bounded;         // there is a largest number
  float headroom, top;  // where m is set the largest weight is 2^headroom = top
  float largest;        // eight together may grow to this before m moves
  float safe_headroom;  // the same in a tile where every step sets m
};
template <auto kConfig>
constexpr WeightRange weight_range() {
  if (!kConfig.fp8() && !kConfig.f16) return {false, 0, 1, 0, 0};
  if (!kConfig.fp8()) return {true, 10, 1024, 16384, static_cast<float>(kConfig.safe_headroom)};
  // A weight_mod multiplies afterwards, and must not leave the range either: numbers that are too large would become
  // the largest one.
  const float factor = 1.0F / static_cast<float>(1 << kConfig.weight_exponent), less = kConfig.weight_exponent;
  if (kConfig.q_fp8 == shared::Fp8::e5m2) return {true, 10 - less, 1024 * factor, 16384 * factor, 10 - less};
  return {true, 5 - less, 32 * factor, 448 * factor, 8 - less};
}

/// Bits of the even and the odd columns of a thread's two rows.
inline constexpr unsigned kAllAttend = 0xF;

/// kAsArray: S stays an array through the compiler's first passes. That takes half a second longer to compile; one
/// kernel becomes faster by it.
/// kSigned: what scores are multiplied by may be negative.
/// kHoles: a step may leave out, of each row, the even or the odd ones of the thread's columns.
/// kNear: lse is asked for in two words. Terms are rounded in powers of two, and so is m when it moves to a weight, so
/// that lse has all its digits only where m is small; else the tile is safe.
template <int kColumns, WeightRange kRange, bool kAsArray, bool kSigned, bool kHoles, ScoreForm kForm,
          bool kNear = false>
struct Softmax {
  RowSums rows;
  ScoreTilt<kForm> tilt;    // of the block
  float limit[2] = {0, 0};  // what eight weights of a step may sum to before m has to move
  bool exact = false;       // in the last step m was the running maximum; the limit is yet to be set
  bool dominated = false;   // in the last step they did
  bool safe = false;        // of the tile: every step takes the running maximum

  // Weights up to this, and their sums, are numbers that a factor brings to 1.
  static constexpr float kLargestJump = 1.2676506e30F;  // 2^100
  // Sums up to this, times the values, are inside O's range.
  static constexpr float kLargestSum = 18446744073709551616.0F;
  // Up to this m is off by 1 at most; kNear: by 2^-14.
  static constexpr float kLargestExponent = kNear ? 1024.0F : 16777216.0F;
  static constexpr float kHeadroom = kRange.headroom, kTop = kRange.top;
  static constexpr float kLargestWeight = kRange.largest, kSafeHeadroom = kRange.safe_headroom;
  static constexpr float kShare = 0.25F;
  static constexpr bool kScoresAreT = kForm == ScoreForm::added || kForm == ScoreForm::mapped;  // natural, not negated

  /// Before each step: whether it has to look for maxima. `rises`: its scores may be far above those before.
  __device__ __forceinline__ void begin_step(bool rises = false) {
    exact = safe | __any_sync(~0U, (rows.m[0] == -ptx::infinity()) | (rows.m[1] == -ptx::infinity()) | rises);
  }

  /// S, a product of queries and keys or t, becomes P, not normalised; scale_log2 makes it a power of two. `attending`,
  /// if there are holes: bit 2 r + e for the columns e of row r; an exact step has all bits.
  __device__ __forceinline__ void step(float (&s)[kColumns / 2], float scale_log2, unsigned attending = kAllAttend) {
    if (exact) raise_to_scores(s, scale_log2);
    const float scale = safe ? 1.0F : scale_log2;
    weigh(
        s, [&](int i, float x, float from) { return fmaf(x, scale, tilt.at(i, from)); }, attending);
  }
  /// step() of small products whose t is capped, x (c0 + c1 x^2 + c2 x^4); not where the step is exact.
  __device__ __forceinline__ void step_capped(float (&s)[kColumns / 2], const float (&series)[3]) {
    weigh(
        s,
        [&](int i, float x, float from) {
          const float u = x * x;
          return fmaf(x, fmaf(fmaf(series[2], u, series[1]), u, series[0]), tilt.at(i, from));
        },
        kAllAttend);
  }
  /// step() of scores that numbers of the keys make t; not where the step is exact.
  template <class Columns>
  __device__ __forceinline__ void step_keyed(float (&s)[kColumns / 2], Columns& columns) {
    weigh(
        s,
        [&](int i, float x, float from) {
          if (i % 8 == 0) columns.load(i / 8);
          return columns(i, x, tilt.at(i, from));
        },
        kAllAttend);
  }

  /// Before the next step of the same tile, where the last one was exact.
  __device__ __forceinline__ void set_limit() {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      limit[r] = kShare * quad_sum(rows.l[r]);
      if constexpr (kRange.bounded) limit[r] = fminf(limit[r], kLargestWeight);
    }
  }

  /// After a step that was not its tile's first: m moved, or must. `before`: m before the step.
  __device__ __forceinline__ bool moves(const float (&before)[2]) const {
    return safe | __any_sync(~0U, (rows.m[0] != before[0]) | (rows.m[1] != before[1]) | dominated);
  }
  /// Then: P is brought to the new m; `rescale` is what o must be multiplied by. `unit`: of m, in powers of two.
  __device__ __forceinline__ void settle(float (&p)[kColumns / 2], const float (&before)[2], float (&rescale)[2],
                                         float unit) {
    if (!safe) {
      raise_to_weights(p);
      exact = true;  // the limit is to be set anew
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      rescale[r] = rows.m[r] == before[r] ? 1.0F : ptx::exp2_fast((before[r] - rows.m[r]) * unit);
    }
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
  /// S becomes P. exponent(i, s, from) is the exponent of register i's score, where the row adds `from` to all of its
  /// exponents.
  template <class Exponent>
  __device__ __forceinline__ void weigh(float (&s)[kColumns / 2], Exponent&& exponent, unsigned attending) {
    float(&m)[2] = rows.m, (&l)[2] = rows.l;
    float offset[2] = {m[0] == -ptx::infinity() ? 0.0F : -m[0], m[1] == -ptx::infinity() ? 0.0F : -m[1]};
    if (safe) offset[0] = offset[1] = kSafeHeadroom;
    if constexpr (ScoreTilt<kForm>::kAny) {
      offset[0] += tilt.base[0];
      offset[1] += tilt.base[1];
    }
    // (A score that is not finite and does not attend makes NaN of these: the sum says so, and the tile is repeated.)
    Offsets offsets[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      for (int e = 0; e < 2; ++e) {
        offsets[r].of[e] = kHoles && !(attending >> (2 * r + e) & 1) ? -ptx::infinity() : offset[r];
      }
    }
    bool over = false;
    float held[2];  // the sums of four weights that wait for four more
#pragma unroll
    for (int c = 0; c < kColumns / 16; ++c) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float four = weigh_four(s, 8 * c + 2 * r, offsets[r], exponent);
        if (c % 2 == 0 && c + 1 < kColumns / 16) {
          held[r] = four;
        } else {
          const float sum = c % 2 == 0 ? four : held[r] + four;
          l[r] += sum;
          over |= sum > limit[r];
        }
      }
    }
    dominated = over & !exact;
  }

  /// The beginnings of the exponents of a row's even and odd columns.
  struct Offsets {
    float of[2];
  };

  /// Four scores of a row become weights; returns their sum.
  template <class Exponent>
  __device__ __forceinline__ float weigh_four(float (&s)[kColumns / 2], int i, const Offsets& offsets,
                                              Exponent&& exponent) const {
    if constexpr (kAsArray) {
      const int at[4] = {i, i + 1, i + 4, i + 5};
#pragma unroll
      for (const int j : at) s[j] = ptx::exp2_fast(exponent(j, s[j], offsets.of[j % 2]));
      return (s[at[0]] + s[at[1]]) + (s[at[2]] + s[at[3]]);
    } else {
      s[i] = ptx::exp2_fast(exponent(i, s[i], offsets.of[0]));
      s[i + 1] = ptx::exp2_fast(exponent(i + 1, s[i + 1], offsets.of[1]));
      s[i + 4] = ptx::exp2_fast(exponent(i + 4, s[i + 4], offsets.of[0]));
      s[i + 5] = ptx::exp2_fast(exponent(i + 5, s[i + 5], offsets.of[1]));
      return (s[i] + s[i + 1]) + (s[i + 4] + s[i + 5]);
    }
  }

  /// The largest of a row's exponents.
  __device__ __forceinline__ float largest(const float (&s)[kColumns / 2], int r, float scale_log2) const {
    if constexpr (ScoreTilt<kForm>::kTilted) {
      float found = -ptx::infinity();
#pragma unroll
      for (int j = 0; j < kColumns / 8; ++j) {
        const int i = 4 * j + 2 * r;
        found = fmaxf(found, fmaxf(fmaf(s[i], scale_log2, tilt.at(i, tilt.base[r])),
                                   fmaf(s[i + 1], scale_log2, tilt.at(i + 1, tilt.base[r]))));
      }
      return quad_max(found);
    } else if constexpr (kSigned && !kScoresAreT) {
      float found = s[2 * r] * scale_log2;
#pragma unroll
      for (int j = 0; j < kColumns / 8; ++j) {
        found = fmaxf(found, fmaxf(s[4 * j + 2 * r] * scale_log2, s[4 * j + 2 * r + 1] * scale_log2));
      }
      found = quad_max(found);
      if constexpr (ScoreTilt<kForm>::kAny) found += tilt.base[r];
      return found;
    } else {
      const float found = quad_max(largest_score(s, r));
      float scaled = found * scale_log2;
      // Rows that attend nothing are left out.
      if constexpr (kScoresAreT) scaled = fmaxf(scaled, found == -ptx::infinity() ? found : -kLargestTerm);
      if constexpr (ScoreTilt<kForm>::kAny) return scaled + tilt.base[r];
      return scaled;
    }
  }

  /// The row's largest score as it stands, in this thread's columns.
  __device__ __forceinline__ static float largest_score(const float (&s)[kColumns / 2], int r) {
    float found = s[2 * r];
#pragma unroll
    for (int j = 0; j < kColumns / 8; ++j) found = fmaxf(found, fmaxf(s[4 * j + 2 * r], s[4 * j + 2 * r + 1]));
    return found;
  }

  /// m becomes the running maximum. Safe: S becomes exponents, but for the headroom.
  __device__ __forceinline__ void raise_to_scores(float (&s)[kColumns / 2], float scale_log2) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float before = rows.m[r];
      if (safe) {
        const float top = fmaxf(before, quad_max(largest_score(s, r)));
        rows.m[r] = top;
        if (top > before) rows.l[r] *= ptx::exp2_fast((before - top) * scale_log2);
        const float from = top == -ptx::infinity() ? 0.0F : top;
#pragma unroll
        for (int j = 0; j < kColumns / 8; ++j) {
          s[4 * j + 2 * r] = (s[4 * j + 2 * r] - from) * scale_log2;
          s[4 * j + 2 * r + 1] = (s[4 * j + 2 * r + 1] - from) * scale_log2;
        }
        continue;
      }
      const float candidate = largest(s, r, scale_log2) - kHeadroom;
      if (candidate > before) {
        rows.m[r] = candidate;
        rows.l[r] *= ptx::exp2_fast(before - candidate);
        if (fabsf(candidate) > kLargestExponent) rows.l[r] = ptx::infinity();  // the tile will be repeated
      }
    }
  }

  /// Like raise_to_scores, but P has replaced the scores: the largest weight becomes kTop.
  __device__ __forceinline__ void raise_to_weights(float (&p)[kColumns / 2]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float found = 0;
#pragma unroll
      for (int j = 0; j < kColumns / 8; ++j) {
        found = ptx::max_positive(found, p[4 * j + 2 * r], p[4 * j + 2 * r + 1]);
      }
      found = quad_max(found);
      if (!(found > kTop)) continue;
      if (found > kLargestJump) {
        rows.l[r] = ptx::infinity();  // the tile will be repeated
        continue;
      }
      const float factor = kTop * ptx::reciprocal(found);
      rows.m[r] += __log2f(found) - kHeadroom;
      rows.l[r] *= factor;
#pragma unroll
      for (int j = 0; j < kColumns / 8; ++j) {
        p[4 * j + 2 * r] *= factor;
        p[4 * j + 2 * r + 1] *= factor;
      }
    }
  }
};

}  // namespace heddle
