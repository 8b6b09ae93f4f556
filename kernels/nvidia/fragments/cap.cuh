// Scores that a score_mod caps: c tanh(x / c).
#pragma once

#include "ptx/math.cuh"
#include "shared/mod_forms.h"

namespace heddle {

/// Whether all the warp's scores are so small that the cap's polynomial serves. (NaN is: it stays.)
template <auto kConfig>
__device__ __forceinline__ bool are_far_from_cap(const float (&s)[kConfig.kv_block / 2], float limit) {
  float largest = 0;
#pragma unroll
  for (int i = 0; i < kConfig.kv_block / 2; i += 2) largest = fmaxf(largest, fabsf(s[i]) + fabsf(s[i + 1]));
  return __all_sync(~0U, largest <= limit);
}

/// Products of queries and keys become t in powers of two, capped: c tanh(x) = c - 2 c / (1 + e^2x), to 2^-22 c.
/// `factor`: of products in 8 bits.
template <auto kConfig>
__device__ __forceinline__ void cap_scores(float (&s)[kConfig.kv_block / 2], const shared::Cap& cap, float factor) {
  float inside = 2 * ptx::kLog2E * cap.inside;
  if constexpr (kConfig.fp8()) inside *= factor;
#pragma unroll
  for (int i = 0; i < kConfig.kv_block / 2; ++i) {
    s[i] = fmaf(-2 * cap.outside, ptx::reciprocal(1 + ptx::exp2_fast(s[i] * inside)), cap.outside);
  }
}

}  // namespace heddle
