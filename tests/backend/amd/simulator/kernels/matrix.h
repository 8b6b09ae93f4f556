// The matrix instruction of the chip for a 16 × 16 tile of C and 16 columns of A: what a lane holds, and which
// elements.
#pragma once

#include "device.h"

typedef _Float16 half;
typedef half half4 __attribute__((ext_vector_type(4)));
typedef half half8 __attribute__((ext_vector_type(8)));
typedef half half16 __attribute__((ext_vector_type(16)));
typedef short short4 __attribute__((ext_vector_type(4)));
typedef short short8 __attribute__((ext_vector_type(8)));
typedef short short16 __attribute__((ext_vector_type(16)));
typedef float float4 __attribute__((ext_vector_type(4)));
typedef float float8 __attribute__((ext_vector_type(8)));
typedef float float16 __attribute__((ext_vector_type(16)));
typedef double double4 __attribute__((ext_vector_type(4)));

// depth_at(e): the column of A, or row of B, of element e of the lane's operand; row_at(g): the row of C of its sum g.
// The row of A, the column of B and the column of C are the lane's number modulo 16. Of a workgroup of several waves
// the wave's own lane.
DEVICE u32 wave_lane() { return thread_x() % __AMDGCN_WAVEFRONT_SIZE; }
#if defined(__gfx1100__)
#define WAVE 32
constexpr u32 kHeld = 16;
DEVICE u32 depth_at(u32 e) { return e; }
DEVICE u32 row_at(u32 g) { return 2 * g + wave_lane() / 16; }
typedef float8 Sums;
DEVICE Sums product(half16 a, half16 b, Sums c) { return __builtin_amdgcn_wmma_f32_16x16x16_f16_w32(a, b, c); }
DEVICE Sums product(short16 a, short16 b, Sums c) { return __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32(a, b, c); }
typedef half16 Halves;
typedef short16 Shorts;
#elif defined(__gfx1201__)
#define WAVE 32
constexpr u32 kHeld = 8;
DEVICE u32 depth_at(u32 e) { return 8 * (wave_lane() / 16) + e; }
DEVICE u32 row_at(u32 g) { return 8 * (wave_lane() / 16) + g; }
typedef float8 Sums;
DEVICE Sums product(half8 a, half8 b, Sums c) { return __builtin_amdgcn_wmma_f32_16x16x16_f16_w32_gfx12(a, b, c); }
DEVICE Sums product(short8 a, short8 b, Sums c) { return __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32_gfx12(a, b, c); }
typedef half8 Halves;
typedef short8 Shorts;
#else
#define WAVE 64
constexpr u32 kHeld = 4;
DEVICE u32 depth_at(u32 e) { return 4 * (wave_lane() / 16) + e; }
DEVICE u32 row_at(u32 g) { return 4 * (wave_lane() / 16) + g; }
typedef float4 Sums;
DEVICE Sums product(half4 a, half4 b, Sums c) { return __builtin_amdgcn_mfma_f32_16x16x16f16(a, b, c, 0, 0, 0); }
DEVICE Sums product(short4 a, short4 b, Sums c) { return __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(a, b, c, 0, 0, 0); }
typedef half4 Halves;
typedef short4 Shorts;
#endif
constexpr u32 kSums = 256 / WAVE;
