// Products by the matrix instructions. A workgroup is one wave: C[M][N] = A[M][K] * B[K][N] in tiles, f16 or bf16 in,
// f32 out.
#include "matrix.h"

template <class Held, class T>
DEVICE void multiply(float* c, const T* a, const T* b, u32 n, u32 k) {
  const u32 top = group_y() * 16, left = group_x() * 16, line = thread_x() % 16;
  Sums sums = {};
  for (u32 first = 0; first < k; first += 16) {
    Held of_a, of_b;
    for (u32 e = 0; e < kHeld; ++e) {
      of_a[e] = a[(top + line) * k + first + depth_at(e)];
      of_b[e] = b[(first + depth_at(e)) * n + left + line];
    }
    sums = product(of_a, of_b, sums);
  }
  for (u32 g = 0; g < kSums; ++g) c[(top + row_at(g)) * n + left + line] = sums[g];
}

KERNEL GROUP_SIZE(WAVE) void multiply_f16(float* c, const half* a, const half* b, u32 n, u32 k) {
  multiply<Halves>(c, a, b, n, k);
}
KERNEL GROUP_SIZE(WAVE) void multiply_bf16(float* c, const short* a, const short* b, u32 n, u32 k) {
  multiply<Shorts>(c, a, b, n, k);
}

// One 32 × 32 tile, and one of doubles: gfx9 alone has them.
#if WAVE == 64
KERNEL GROUP_SIZE(64) void multiply_32(float* c, const half* a, const half* b, u32 k) {
  const u32 line = thread_x() % 32, part = thread_x() / 32;
  float16 sums = {};
  for (u32 first = 0; first < k; first += 8) {
    half4 of_a, of_b;
    for (u32 e = 0; e < 4; ++e) {
      of_a[e] = a[line * k + first + 4 * part + e];
      of_b[e] = b[(first + 4 * part + e) * 32 + line];
    }
    sums = __builtin_amdgcn_mfma_f32_32x32x8f16(of_a, of_b, sums, 0, 0, 0);
  }
  for (u32 g = 0; g < 16; ++g) c[(8 * (g / 4) + 4 * part + g % 4) * 32 + line] = sums[g];
}

KERNEL GROUP_SIZE(64) void multiply_f64(double* c, const double* a, const double* b, u32 k) {
  const u32 line = thread_x() % 16, part = thread_x() / 16;
  double4 sums = {};
  for (u32 first = 0; first < k; first += 4) {
    sums =
        __builtin_amdgcn_mfma_f64_16x16x4f64(a[line * k + first + part], b[(first + part) * 16 + line], sums, 0, 0, 0);
  }
  for (u32 g = 0; g < 4; ++g) c[(4 * g + part) * 16 + line] = sums[g];
}
#endif
