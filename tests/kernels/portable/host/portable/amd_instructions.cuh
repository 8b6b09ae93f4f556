// Stands in for kernels/amd/portable/amd_instructions.cuh on the host: the same instructions, by the layouts of AMD's
// matrix instruction calculator (which lane and register has which row, column and depth).
#pragma once

#include <bit>
#include <cmath>
#include <cstring>

#include "lanes.h"

namespace heddle::amd {

inline int thread() { return static_cast<int>(threadIdx.x); }
inline int uniform(int x) {
  return lanes::together<int>("readfirstlane", x, [](const int* const* in, int* const* out) {
    for (int i = 0; i < lanes::cta.wave; ++i) *out[i] = *in[0];
  });
}
inline void barrier() { __syncthreads(); }
inline void device_fence() {}
inline unsigned long long compare_and_swap(unsigned long long* at, unsigned long long from, unsigned long long to) {
  return atomicCAS(at, from, to);
}
template <int kWave>
bool any(bool x) {
  return __any_sync(~0U, x);
}
template <int kWave>
unsigned other_half(unsigned x) {
  return lanes::from_lane(x, lanes::cta.lane() ^ (kWave / 2));
}
inline float settled(float x) { return x; }
inline float flushed(float x) { return std::fabs(x) < 0x1p-126F ? 0 : x; }
inline float exp2(float x) { return std::exp2(x); }
inline float log2(float x) { return std::log2(x); }
inline float reciprocal(float x) { return 1 / x; }
inline float larger(float x, float y) { return std::fmax(x, y); }

template <bool kF16>
unsigned rounded(float x) {
  if constexpr (kF16) return std::bit_cast<unsigned short>(static_cast<_Float16>(x));
  const auto bits = std::bit_cast<unsigned>(x);
  return x != x ? 0x7fffU : (bits + 0x7fffU + (bits >> 16 & 1)) >> 16;
}
template <bool kF16>
unsigned pack(float low, float high) {
  return rounded<kF16>(high) << 16 | rounded<kF16>(low);
}
inline unsigned lower_halves(unsigned x, unsigned y) { return (x & 0xffffU) | y << 16; }
inline unsigned upper_halves(unsigned x, unsigned y) { return x >> 16 | (y & 0xffff0000U); }

template <bool kF16>
float half_of(unsigned word, int half) {
  const auto bits = static_cast<unsigned short>(half == 0 ? word : word >> 16);
  if constexpr (kF16) return static_cast<float>(std::bit_cast<_Float16>(bits));
  return std::bit_cast<float>(static_cast<unsigned>(bits) << 16);
}

/// c += a b. `depth(lane, element)`: which of the depth an element of a lane's operand is; `row(lane, register)`: which
/// row of c. Both operands' rows, or columns, are lane % kSize, and so is c's column.
template <bool kF16, int kSize, int kDepth, int kResults, int kWords, class Depth, class Row>
void product(const char* name, float (&c)[kResults], const unsigned (&a)[kWords], const unsigned (&b)[kWords],
             Depth depth, Row row) {
  struct Operands {
    unsigned a[kWords], b[kWords];
    float c[kResults];
  };
  struct Result {
    float c[kResults];
  };
  Operands own;
  std::memcpy(own.a, a, sizeof a), std::memcpy(own.b, b, sizeof b), std::memcpy(own.c, c, sizeof c);
  const Result result = lanes::together<Result>(name, own, [&](const Operands* const* in, Result* const* out) {
    float left[kSize][kDepth], right[kDepth][kSize];
    bool seen[kSize][kDepth] = {};
    for (int lane = 0; lane < lanes::cta.wave; ++lane) {
      for (int e = 0; e < 2 * kWords; ++e) {
        const int at = lane % kSize, k = depth(lane, e);
        const float x = half_of<kF16>(in[lane]->a[e / 2], e % 2), y = half_of<kF16>(in[lane]->b[e / 2], e % 2);
        const auto differs = [](float p, float q) { return std::bit_cast<unsigned>(p) != std::bit_cast<unsigned>(q); };
        if (seen[at][k] && (differs(left[at][k], x) || differs(right[k][at], y))) {
          lanes::fail("the halves of a wave hold different operands");
        }
        seen[at][k] = true;
        left[at][k] = x, right[k][at] = y;
      }
    }
    for (int lane = 0; lane < lanes::cta.wave; ++lane) {
      for (int g = 0; g < kResults; ++g) {
        double sum = in[lane]->c[g];
        for (int k = 0; k < kDepth; ++k) sum += static_cast<double>(left[row(lane, g)][k]) * right[k][lane % kSize];
        out[lane]->c[g] = static_cast<float>(sum);
      }
    }
  });
  std::memcpy(c, result.c, sizeof c);
}

template <bool kF16>
void multiply_gfx11(float (&c)[8], const unsigned (&a)[8], const unsigned (&b)[8]) {
  product<kF16, 16, 16>(
      "wmma", c, a, b, [](int, int e) { return e; }, [](int lane, int g) { return 2 * g + lane / 16; });
}
template <bool kF16>
void multiply_gfx12(float (&c)[8], const unsigned (&a)[4], const unsigned (&b)[4]) {
  // k = 8 (g / 2) + 4 (lane / 16) + 2 (g % 2) + half of register g.
  product<kF16, 16, 16>(
      "wmma", c, a, b, [](int lane, int e) { return 8 * (e / 4) + 4 * (lane / 16) + e % 4; },
      [](int lane, int g) { return 8 * (lane / 16) + g; });
}
template <bool kF16>
void multiply_gfx9(float (&c)[16], const unsigned (&a)[2], const unsigned (&b)[2]) {
  product<kF16, 32, 8>(
      "mfma", c, a, b, [](int lane, int e) { return 4 * (lane / 32) + e; },
      [](int lane, int g) { return 8 * (g / 4) + 4 * (lane / 32) + g % 4; });
}

}  // namespace heddle::amd
