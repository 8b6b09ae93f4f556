// The functions of SLEEF that sleef-inl.h calls. sleef.h declares the vector forms only where the compiler's command
// line allows their instructions; here they are chosen at run time.
#pragma once

#include <hwy/detect_compiler_arch.h>

#if HWY_ARCH_X86
#include <immintrin.h>
// So that vectors are passed as the functions' own translation units pass them.
#define HEDDLE_AVX2 __attribute__((target("avx2")))
#define HEDDLE_AVX512 __attribute__((target("avx512f")))
#endif

extern "C" {

#define HEDDLE_SLEEF(Name, name, accuracy) \
  float Sleef_##name##f_##accuracy(float); \
  double Sleef_##name##_##accuracy(double);
#include "tile_evaluator/sleef_functions.def"
float Sleef_powf_u10(float, float);

#if HWY_ARCH_X86
#define HEDDLE_SLEEF(Name, name, accuracy)                            \
  HEDDLE_AVX2 __m256 Sleef_##name##f8_##accuracy##avx2(__m256);       \
  HEDDLE_AVX2 __m256d Sleef_##name##d4_##accuracy##avx2(__m256d);     \
  HEDDLE_AVX512 __m512 Sleef_##name##f16_##accuracy##avx512f(__m512); \
  HEDDLE_AVX512 __m512d Sleef_##name##d8_##accuracy##avx512f(__m512d);
#include "tile_evaluator/sleef_functions.def"
HEDDLE_AVX2 __m256 Sleef_powf8_u10avx2(__m256, __m256);
HEDDLE_AVX512 __m512 Sleef_powf16_u10avx512f(__m512, __m512);
#endif

}  // extern "C"

#undef HEDDLE_AVX2
#undef HEDDLE_AVX512
