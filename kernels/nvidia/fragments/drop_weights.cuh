// A weight_mod that keeps an element or drops it, by a draw (generated: seed_..., threshold_... and kept_...). A kept
// element stays in P as it is, a dropped one becomes 0, and the weight of the kept ones joins 1 / l.
//
// A draw is k / 2^15, and k half a pair of shared/philox.h: sixteen of a thread's scores in a row share one call. In
// packed P two neighbours are one register, and their draws are one word: one comparison of pairs makes a mask, one
// more instruction applies it. It compares the bits as f16 numbers, which order as integers do, with NaN above all. A
// threshold in the range of NaN would be unordered, so such draws (p above 0.968) become 0 or 2 first.
#pragma once

#include "fragments/elements.cuh"
#include "ptx/math.cuh"
#include "shared/mod_forms.h"
#include "shared/philox.h"

namespace heddle {

/// Drops of a tile, in registers.
struct Drops {
  unsigned seed;
  unsigned threshold;  // 0 to 2^15
  unsigned inverted;   // 0: draws from the threshold on are kept; all ones: those below it
  float kept;          // the weight of what is kept

  __device__ __forceinline__ void begin_tile(const shared::ModValues& mod, const BlockOrigin& at) {
    seed = static_cast<unsigned>(uniform_value<SeedMod>(mod, at, seed_element));
    const int from = uniform_value<ThresholdMod>(mod, at, threshold_element);
    inverted = from < 0 ? ~0U : 0;
    threshold = static_cast<unsigned>(from) ^ inverted;
    kept = uniform_value<KeptMod>(mod, at, kept_element);
  }
  /// The factor of finished rows besides 1 / l.
  __device__ __forceinline__ float factor() const { return is_finite() ? kept : 1.0F; }
  /// If it is not, each kept element is multiplied, so that dropped ones do not meet it.
  __device__ __forceinline__ bool is_finite() const { return fabsf(kept) < ptx::infinity(); }
};

/// A consumer's drops. Empty in a kernel that drops nothing, so that its machine code has none.
template <bool kDropped>
struct DropsOf {};
template <>
struct DropsOf<true> {
  Drops drops;
};

/// In one instruction: of the product of 64-bit numbers the compiler makes up to four.
struct WideMultiply {
  __device__ __forceinline__ shared::PhiloxProduct operator()(unsigned x, unsigned factor) const {
    shared::PhiloxProduct product;
    asm("{\n"
        ".reg .b64 wide;\n"
        "mul.wide.u32 wide, %2, %3;\n"
        "mov.b64 {%0, %1}, wide;\n"
        "}"
        : "=r"(product.low), "=r"(product.high)
        : "r"(x), "r"(factor));
    return product;
  }
};

/// The pairs of a call, as shared::random_uniform_pair().
__device__ __forceinline__ void pairs_of_call(unsigned (&pairs)[8], const shared::PhiloxWords& words) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const unsigned own = words.word[i], both = own ^ words.word[(i + 1) % 4];
    pairs[i] = __byte_perm(own, both, 0x3614);
    pairs[i + 4] = __byte_perm(own, both, 0x2705);
  }
}

/// Two draws against two thresholds: all ones in the halves of those that are not below.
__device__ __forceinline__ unsigned not_below(unsigned draws, unsigned thresholds) {
  unsigned mask;
  asm("{\n"
      ".reg .b32 positive;\n"
      "abs.f16x2 positive, %1;\n"
      "set.geu.u32.f16x2 %0, positive, %2;\n"
      "}"
      : "=r"(mask)
      : "r"(draws), "r"(thresholds));
  return mask;
}

/// Pairs of draws become masks.
template <int kPairs>
__device__ __forceinline__ void compare_draws(unsigned (&pairs)[kPairs], unsigned threshold) {
  constexpr unsigned kInfinity = 0x7C00;  // of f16: what lies above is NaN
  unsigned thresholds = threshold * 0x10001U;
  // The vote, of one value a warp, is for the compiler: every thread knows the same.
  if (__any_sync(~0U, threshold > kInfinity)) {
#pragma unroll
    for (unsigned& pair : pairs) pair = (((pair | 0x80008000U) - thresholds) & 0x80008000U) >> 1;
    thresholds = 0x40004000U;
  }
#pragma unroll
  for (unsigned& pair : pairs) pair = not_below(pair, thresholds);
}

/// The masks of a block, masks[i] for register i of P. By each thread its own, here and now: the compiler may not move
/// them before a wait that stands before.
template <int kKeys>
__device__ __forceinline__ void draw(unsigned (&masks)[kKeys / 4], const Drops& drops, BlockOrigin at) {
  static_assert(kKeys % shared::kKeysOfDraw == 0 && shared::kKeysOfDraw == shared::kRandomUniformGroup);
  asm volatile("" : "+r"(at.q_idx));
  const unsigned first = shared::random_uniform_column(static_cast<unsigned>(at.kv_first) + 2 * (threadIdx.x & 3));
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const shared::RandomUniformRow row =
        shared::random_uniform_row(drops.seed, static_cast<unsigned>(at.batch), static_cast<unsigned>(at.head),
                                   static_cast<unsigned>(at.q_idx) + 8 * r, WideMultiply());
#pragma unroll
    for (int group = 0; group < kKeys / shared::kKeysOfDraw; ++group) {
      unsigned pairs[8];
      pairs_of_call(pairs,
                    shared::random_uniform_words(row, first + group * shared::kRandomUniformColumns, WideMultiply()));
#pragma unroll
      for (int i = 0; i < 8; ++i) masks[2 * (8 * group + i) + r] = pairs[i];
    }
  }
  compare_draws(masks, drops.threshold);
}

/// Masks, a register each of P, become P. p: the weights, in f32.
template <auto kConfig>
__device__ __forceinline__ void pack_kept(unsigned (&masks)[kConfig.kv_block / 4], float (&p)[kConfig.kv_block / 2],
                                          const Drops& drops) {
  // If the weight of kept elements is not finite, all weights are multiplied by it here.
  if (__any_sync(~0U, !drops.is_finite())) {
#pragma unroll
    for (float& x : p) x *= drops.kept;
  }
#pragma unroll
  for (int i = 0; i < kConfig.kv_block / 4; ++i) {
    masks[i] = ptx::pack<kConfig.f16>(p[2 * i], p[2 * i + 1]) & (masks[i] ^ drops.inverted);
  }
}

}  // namespace heddle
