// The weights of the normalizers none and sigmoid. Each weight is a function of its own t: there is no maximum, no sum
// and no division, and no later block of keys changes it. It has the interface of Softmax.
//
// bf16 holds all of these weights. f16 ends at 2^16 and loses bits below 2^-14:
// - Sigmoid's weights are at most 1. They are made 2^15 times as large (2^8 times if a weight_mod needs room), and o is
//   brought back when it is stored.
// - With none, t may be anything. A row takes a power of two from the first block in which it has an element that is
//   not 0, so that the largest of these elements becomes 2^10 or a little more. If a later element is 2^5 times as
//   large, it is infinite in f16, and so is o. The tile is then computed again, safely: there the power follows the
//   largest element so far.
#pragma once

#include "fragments/lane_reductions.cuh"
#include "fragments/softmax.cuh"
#include "fragments/tilt.cuh"
#include "ptx/math.cuh"

namespace heddle {

/// 2^x of an integer from -126 to 127.
__device__ __forceinline__ float power_of_two(float x) { return __int_as_float((static_cast<int>(x) + 127) << 23); }

template <int kColumns, bool kF16, bool kWeighted, ScoreForm kForm, Normalizer kNormalizer, bool kDropped = false>
struct ElementWeights {
  /// A dropped element is 0 times its weight: NaN where the weight is NaN. The rows' sums show it.
  static constexpr bool kSums = kDropped;
  static constexpr bool kSigmoid = kNormalizer == Normalizer::sigmoid;
  /// Rows have powers of two of their own, in rows.m; -inf: none yet.
  static constexpr bool kOwnPowers = kF16 && !kSigmoid;
  static constexpr float kTop = kWeighted ? 5 : 10;                           // then: the largest weight's exponent
  static constexpr float kRaise = kF16 && kSigmoid ? kWeighted ? 8 : 15 : 0;  // else: all are 2^kRaise times too large
  static constexpr float kLeast = -120, kMost = 117;  // powers: they and their inverses are normal numbers

  RowSums rows;
  ScoreTilt<kForm, kNormalizer> tilt;  // of the block
  bool exact = false;                  // in this step rows may take another power
  bool safe = false;                   // of the tile: all steps are
  float held = 0;                      // what pin() holds

  __device__ __forceinline__ void begin_step(bool rises = false) {
    if constexpr (kOwnPowers) {
      exact = safe | __any_sync(~0U, (rows.m[0] == -ptx::infinity()) | (rows.m[1] == -ptx::infinity()) | rises);
    }
  }

  /// S, a product of queries and keys or t, becomes P; `scale` makes it t, for sigmoid in powers of two.
  __device__ __forceinline__ void step(float (&s)[kColumns / 2], float scale) {
    weigh(s, [&](int i, float x, float from) { return fmaf(x, scale, tilt.at(i, from)); });
  }
  /// step() of small products whose t is capped, x (c0 + c1 x^2 + c2 x^4).
  __device__ __forceinline__ void step_capped(float (&s)[kColumns / 2], const float (&series)[3]) {
    weigh(s, [&](int i, float x, float from) {
      const float u = x * x;
      return fmaf(x, fmaf(fmaf(series[2], u, series[1]), u, series[0]), tilt.at(i, from));
    });
  }
  /// step() of scores that numbers of the keys make t.
  template <class Columns>
  __device__ __forceinline__ void step_keyed(float (&s)[kColumns / 2], Columns& columns) {
    weigh(s, [&](int i, float x, float from) {
      if (i % 8 == 0) columns.load(i / 8);
      return columns(i, x, tilt.at(i, from));
    });
  }

  __device__ __forceinline__ void set_limit() {}

  /// Some row has taken another power, or its first. `before`: the powers before the step.
  __device__ __forceinline__ bool moves(const float (&before)[2]) const {
    if constexpr (!kOwnPowers) return false;
    return __any_sync(~0U, (rows.m[0] != before[0]) | (rows.m[1] != before[1]));
  }
  /// Then: `rescale` is what o must be multiplied by. P has the new powers.
  __device__ __forceinline__ void settle(float (&)[kColumns / 2], const float (&before)[2], float (&rescale)[2],
                                         float) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      rescale[r] = rows.m[r] == before[r] ? 1.0F : ptx::exp2_fast(before[r] - rows.m[r]);
    }
  }
  /// The factor that brings the o of row r back.
  __device__ __forceinline__ float factor(int r) const {
    if constexpr (kOwnPowers) return rows.m[r] == -ptx::infinity() ? 1.0F : power_of_two(rows.m[r]);
    return kSums ? fmaf(quad_sum(rows.l[r]), 0.0F, power_of_two(-kRaise)) : power_of_two(-kRaise);
  }

  /// Like Softmax's: a sum of numbers that are not negative is never below -1.
  __device__ __forceinline__ void pin(unsigned shared_address) const {
    asm volatile(
        "{\n"
        ".reg .pred never;\n"
        "setp.lt.f32 never, %0, %1;\n"
        "@never st.shared.f32 [%2], %0;\n"
        "}" ::"f"(kSums ? rows.l[0] + rows.l[1] : held),
        "f"(-1.0F), "r"(shared_address)
        : "memory");
  }

 private:
  template <class T>
  __device__ __forceinline__ void weigh(float (&s)[kColumns / 2], T&& t_of) {
    float from[2] = {kRaise, kRaise};
    if constexpr (ScoreTilt<kForm, kNormalizer>::kAny) {
      from[0] += tilt.base[0];
      from[1] += tilt.base[1];
    }
    held = 0;
#pragma unroll
    for (int i = 0; i < kColumns / 2; ++i) {
      const float t = t_of(i, s[i], from[(i >> 1) & 1]);
      if constexpr (kSigmoid) {
        // If the power overflows, the weight is 0.
        s[i] = ptx::reciprocal(kBase + ptx::exp2_fast(-t));
        if constexpr (kSums) {
          rows.l[(i >> 1) & 1] += s[i];
        } else {
          held += s[i];
        }
      } else {
        s[i] = t == -ptx::infinity() ? 0.0F : t;
        held = fmaf(s[i], s[i], held);
      }
    }
    if constexpr (kOwnPowers) {
      if (exact) raise_powers(s);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float unit = rows.m[r] == -ptx::infinity() ? 1.0F : power_of_two(-rows.m[r]);
#pragma unroll
        for (int j = 0; j < kColumns / 8; ++j) {
          s[4 * j + 2 * r] *= unit;
          s[4 * j + 2 * r + 1] *= unit;
        }
      }
    }
  }

  /// Raises powers so that the largest weight of a row is no more than 2^kTop, or a little.
  __device__ __forceinline__ void raise_powers(const float (&p)[kColumns / 2]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float largest = 0;  // an infinite one is as good as the largest number
#pragma unroll
      for (int j = 0; j < kColumns / 8; ++j) {
        largest = fmaxf(largest, fmaxf(fabsf(p[4 * j + 2 * r]), fabsf(p[4 * j + 2 * r + 1])));
      }
      largest = quad_max(largest);
      const float exponent = static_cast<float>(static_cast<int>(__float_as_uint(largest) >> 23) - 127);
      const float power = fminf(fmaxf(exponent - kTop, kLeast), kMost);
      if (largest > 0 && power > rows.m[r]) rows.m[r] = power;
    }
  }

  static constexpr float kBase = kRaise == 0 ? 1.0F : kRaise == 8 ? 0x1p-8F : 0x1p-15F;  // 2^-kRaise
};

}  // namespace heddle
