// Scores whose rows are keys and whose columns are queries, 64 x 64 of a warpgroup (S^T = K Q^T): thread `lane` of a
// warp holds the keys lane / 4 and 8 further down of the warp's sixteen, and the queries 8 j + 2 (lane % 4) + e, in
// register 4 j + 2 r + e. The bit of a score in a word is the number of its register.
#pragma once

#include "fragments/elements.cuh"
#include "mods/columns.cuh"
#include "ptx/math.cuh"
#include "shared/mod_forms.h"
#include "shared/mod_values.h"
#include "shared/philox.h"

namespace heddle {

/// Where a thread's scores lie.
struct TransposedOrigin {
  int batch, head;
  int q_idx;   // of its first query, q_start included
  int kv_idx;  // of its first key; the other is 8 further down
  __device__ __forceinline__ int query(int j, int e) const { return q_idx + 8 * j + e; }
  __device__ __forceinline__ int key(int r) const { return kv_idx + 8 * r; }
};

/// A mod over a thread's scores. The constructor computes the part that depends on the key, once for each key;
/// set_query() computes the part that depends on the query.
template <class Mod>
struct TransposedMod {
  typename Mod::Uniform uniform;
  typename Mod::Column column[2];
  typename Mod::Row row;
  __device__ __forceinline__ TransposedMod(const shared::ModValues& mod, const TransposedOrigin& at)
      : uniform(Mod::uniform(mod, at.batch, at.head)) {
    for (int r = 0; r < 2; ++r) column[r] = Mod::column(mod, uniform, at.batch, at.head, at.key(r));
  }
  __device__ __forceinline__ void set_query(const shared::ModValues& mod, const TransposedOrigin& at, int q_idx) {
    row = Mod::row(mod, uniform, at.batch, at.head, q_idx);
  }
};

/// Kept elements of a weight_mod that draws: the forward's draws. A call serves both keys of a thread.
struct TransposedDrops {
  unsigned bits;
  float kept;  // the weight of what is kept
  /// x times the weight of register n. (The weights by themselves would take registers.)
  __device__ __forceinline__ float weighed(int n, float x) const { return (bits >> n & 1) != 0 ? x * kept : 0.0F; }
};
__device__ __forceinline__ float kept_weight(const shared::ModValues& mod, const TransposedOrigin& at) {
  return uniform_value<KeptMod>(mod, BlockOrigin{at.batch, at.head, 0, 0}, kept_element);
}
__device__ __forceinline__ TransposedDrops draw_transposed(const shared::ModValues& mod, const TransposedOrigin& at) {
  const BlockOrigin head = {at.batch, at.head, 0, 0};
  const auto seed = static_cast<unsigned>(uniform_value<SeedMod>(mod, head, seed_element));
  const int from = uniform_value<ThresholdMod>(mod, head, threshold_element);  // below 0: kept are those below ~from
  const auto threshold = static_cast<unsigned>(from < 0 ? ~from : from);
  const auto key = static_cast<unsigned>(at.kv_idx);
  const unsigned column = shared::random_uniform_column(key);
  TransposedDrops kept = {0, kept_weight(mod, at)};
#pragma unroll 1
  for (int j = 0; j < 8; ++j) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const shared::PhiloxWords words = shared::random_uniform_words(
          shared::random_uniform_row(seed, static_cast<unsigned>(at.batch), static_cast<unsigned>(at.head),
                                     static_cast<unsigned>(at.query(j, e))),
          column);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const unsigned of_pair = shared::random_uniform_pair_of(key + 8 * r);
        const unsigned drawn = shared::random_uniform_bits(shared::random_uniform_pair(words, of_pair), key);
        const bool keeps = (drawn >= threshold) != (from < 0);
        kept.bits |= static_cast<unsigned>(keeps) << (4 * j + 2 * r + e);
      }
    }
  }
  return kept;
}

/// The scores that attend: of `queries` queries from the thread's first on and `keys` keys, and, where the mask
/// decides, by the mask_mod.
template <auto kConfig>
__device__ __forceinline__ unsigned attending_bits(const shared::ModValues& mod, const TransposedOrigin& at,
                                                   int queries, int keys, bool by_mask) {
  unsigned bits = 0;
#pragma unroll
  for (int j = 0; j < 8; ++j) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        if (8 * j + e < queries && 8 * r < keys) bits |= 1U << (4 * j + 2 * r + e);
      }
    }
  }
  if constexpr (kConfig.masked) {
    if (by_mask) {
      TransposedMod<MaskMod> mask(mod, at);
#pragma unroll 2
      for (int j = 0; j < 8; ++j) {
        unsigned of_four = 0;
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int q_idx = at.query(j, e);
          mask.set_query(mod, at, q_idx);
#pragma unroll
          for (int r = 0; r < 2; ++r) {
            if (mask_element(mod, mask.uniform, mask.row, mask.column[r], at.batch, at.head, q_idx, at.key(r)))
              of_four |= 1U << (2 * r + e);
          }
        }
        bits &= of_four << (4 * j) | ~(15U << (4 * j));
      }
    }
  }
  return bits;
}

}  // namespace heddle
