// A small fused attention over the chip's matrix instruction, f16 in, f32 out: a workgroup of four waves takes 64
// queries of one head, a wave 16 of them. Scores are computed transposed, S^T = K Q^T, so that a lane holds scores of
// one query, and O^T = V^T P^T takes them as they stand (on gfx11 after an exchange between the halves of the wave).
#include "matrix.h"

constexpr u32 kDim = 64, kTile = 32, kWaves = 4, kThreads = kWaves * WAVE;
constexpr u32 kKStride = kDim + 8, kVStride = kTile + 8;  // halves a row in LDS: fragment loads without bank conflicts

DEVICE float of_lane(float x, u32 lane) {
  return __builtin_bit_cast(float, __builtin_amdgcn_ds_bpermute((int)(lane * 4), __builtin_bit_cast(int, x)));
}

DEVICE float join_max(float x) {
  for (u32 mask = 16; mask < WAVE; mask *= 2) x = __builtin_fmaxf(x, of_lane(x, wave_lane() ^ mask));
  return x;
}

DEVICE float join_sum(float x) {
  for (u32 mask = 16; mask < WAVE; mask *= 2) x += of_lane(x, wave_lane() ^ mask);
  return x;
}

// P^T as the second operand of O^T's product.
DEVICE Halves operand_of(Sums p) {
  Halves result;
#if defined(__gfx1100__)
  for (u32 g = 0; g < kSums; ++g) {  // this half of the wave holds the even rows or the odd ones
    const float other = of_lane(p[g], wave_lane() ^ 16);
    const bool odd = wave_lane() >= 16;
    result[2 * g] = (half)(odd ? other : p[g]);
    result[2 * g + 1] = (half)(odd ? p[g] : other);
  }
#else
  for (u32 g = 0; g < kSums; ++g) result[g] = (half)p[g];
#endif
  return result;
}

// kAllBarriers false: the tile is filled again while other waves may still read it.
template <bool kAllBarriers>
DEVICE void attend(float* o, float* lse, const half* q, const half* k, const half* v, u32 queries, u32 keys,
                   float scale, u32 causal) {
  SHARED static half k_tile[kTile * kKStride];
  SHARED static half v_tile[kDim * kVStride];  // transposed

  const u32 head = group_y(), line = wave_lane() % 16;
  const u32 wave = (u32)__builtin_amdgcn_readfirstlane((int)(thread_x() / WAVE));
  const u32 first_query = group_x() * 16 * kWaves + wave * 16, query = first_query + line;
  q += (u64)head * queries * kDim, k += (u64)head * keys * kDim, v += (u64)head * keys * kDim;

  Halves q_rows[kDim / 16];
  for (u32 d = 0; d < kDim / 16; ++d) {
    for (u32 e = 0; e < kHeld; ++e)
      q_rows[d][e] = q[(query < queries ? query : queries - 1) * kDim + d * 16 + depth_at(e)];
  }

  Sums out[kDim / 16] = {};
  float top = -__builtin_inff(), sum = 0;
  const u32 last_query = group_x() * 16 * kWaves + 16 * kWaves - 1;
  const u32 end = causal && last_query + 1 < keys ? last_query + 1 : keys;
  for (u32 first = 0; first < end; first += kTile) {
    if (kAllBarriers) barrier();
    for (u32 at = thread_x() * 8; at < kTile * kDim; at += kThreads * 8) {
      const u32 row = at / kDim, column = at % kDim, from = first + row < keys ? first + row : keys - 1;
      half8 k_part = *(const half8*)(k + from * kDim + column), v_part = *(const half8*)(v + from * kDim + column);
      *(half8*)(k_tile + row * kKStride + column) = k_part;
      for (u32 e = 0; e < 8; ++e) v_tile[(column + e) * kVStride + row] = first + row < keys ? v_part[e] : (half)0.0f;
    }
    barrier();

    Sums scores[kTile / 16];
    for (u32 t = 0; t < kTile / 16; ++t) {
      scores[t] = (Sums){};
      for (u32 d = 0; d < kDim / 16; ++d) {
        Halves k_rows;
        for (u32 e = 0; e < kHeld; ++e) k_rows[e] = k_tile[(t * 16 + line) * kKStride + d * 16 + depth_at(e)];
        scores[t] = product(k_rows, q_rows[d], scores[t]);
      }
    }
    float tile_top = -__builtin_inff();
    for (u32 t = 0; t < kTile / 16; ++t) {
      for (u32 g = 0; g < kSums; ++g) {
        const u32 key = first + t * 16 + row_at(g);
        const bool counts = key < keys && (!causal || key <= query);
        scores[t][g] = counts ? scores[t][g] * scale : -__builtin_inff();
        tile_top = __builtin_fmaxf(tile_top, scores[t][g]);
      }
    }
    const float new_top = __builtin_fmaxf(top, join_max(tile_top));
    const float base = new_top == -__builtin_inff() ? 0.0f : new_top;
    const float correction = __builtin_amdgcn_exp2f(top - base);
    top = new_top;
    sum *= correction;
    for (u32 d = 0; d < kDim / 16; ++d) out[d] *= correction;
    for (u32 t = 0; t < kTile / 16; ++t) {
      for (u32 g = 0; g < kSums; ++g) {
        scores[t][g] = __builtin_amdgcn_exp2f(scores[t][g] - base);
        sum += scores[t][g];
      }
      const Halves p = operand_of(scores[t]);
      for (u32 d = 0; d < kDim / 16; ++d) {
        Halves v_rows;
        for (u32 e = 0; e < kHeld; ++e) v_rows[e] = v_tile[(d * 16 + line) * kVStride + t * 16 + depth_at(e)];
        out[d] = product(v_rows, p, out[d]);
      }
    }
  }
  sum = join_sum(sum);
  if (query >= queries) return;
  const float inverse = sum > 0 ? 1.0f / sum : 0.0f;
  for (u32 d = 0; d < kDim / 16; ++d) {
    for (u32 g = 0; g < kSums; ++g) o[((u64)head * queries + query) * kDim + d * 16 + row_at(g)] = out[d][g] * inverse;
  }
  if (wave_lane() < 16) lse[head * queries + query] = (top + __builtin_amdgcn_logf(sum)) * 0.6931471805599453f;
}

#define ARGUMENTS \
  float *o, float *lse, const half *q, const half *k, const half *v, u32 queries, u32 keys, float scale, u32 causal
KERNEL GROUP_SIZE(kThreads) void attention(ARGUMENTS) { attend<true>(o, lse, q, k, v, queries, keys, scale, causal); }
KERNEL GROUP_SIZE(kThreads) void attention_without_a_barrier(ARGUMENTS) {
  attend<false>(o, lse, q, k, v, queries, keys, scale, causal);
}
