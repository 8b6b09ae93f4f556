// The functions of SLEEF that math-inl.h calls. sleef.h declares the vector forms only where the compiler's command
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

float Sleef_logf_u10(float);
float Sleef_log2f_u10(float);
float Sleef_sinf_u10(float);
float Sleef_cosf_u10(float);
float Sleef_erff_u10(float);
float Sleef_expm1f_u10(float);
float Sleef_log1pf_u10(float);
float Sleef_tanf_u10(float);
float Sleef_atanf_u10(float);
float Sleef_powf_u10(float, float);
double Sleef_log_u10(double);
double Sleef_log2_u10(double);
double Sleef_sin_u10(double);
double Sleef_cos_u10(double);
double Sleef_erf_u10(double);
double Sleef_expm1_u10(double);
double Sleef_log1p_u10(double);
double Sleef_tan_u10(double);
double Sleef_atan_u10(double);

#if HWY_ARCH_X86
HEDDLE_AVX2 __m256 Sleef_logf8_u10avx2(__m256);
HEDDLE_AVX2 __m256 Sleef_log2f8_u10avx2(__m256);
HEDDLE_AVX2 __m256 Sleef_sinf8_u10avx2(__m256);
HEDDLE_AVX2 __m256 Sleef_cosf8_u10avx2(__m256);
HEDDLE_AVX2 __m256 Sleef_erff8_u10avx2(__m256);
HEDDLE_AVX2 __m256 Sleef_expm1f8_u10avx2(__m256);
HEDDLE_AVX2 __m256 Sleef_log1pf8_u10avx2(__m256);
HEDDLE_AVX2 __m256 Sleef_tanf8_u10avx2(__m256);
HEDDLE_AVX2 __m256 Sleef_atanf8_u10avx2(__m256);
HEDDLE_AVX2 __m256 Sleef_powf8_u10avx2(__m256, __m256);
HEDDLE_AVX2 __m256d Sleef_logd4_u10avx2(__m256d);
HEDDLE_AVX2 __m256d Sleef_log2d4_u10avx2(__m256d);
HEDDLE_AVX2 __m256d Sleef_sind4_u10avx2(__m256d);
HEDDLE_AVX2 __m256d Sleef_cosd4_u10avx2(__m256d);
HEDDLE_AVX2 __m256d Sleef_erfd4_u10avx2(__m256d);
HEDDLE_AVX2 __m256d Sleef_expm1d4_u10avx2(__m256d);
HEDDLE_AVX2 __m256d Sleef_log1pd4_u10avx2(__m256d);
HEDDLE_AVX2 __m256d Sleef_tand4_u10avx2(__m256d);
HEDDLE_AVX2 __m256d Sleef_atand4_u10avx2(__m256d);

HEDDLE_AVX512 __m512 Sleef_logf16_u10avx512f(__m512);
HEDDLE_AVX512 __m512 Sleef_log2f16_u10avx512f(__m512);
HEDDLE_AVX512 __m512 Sleef_sinf16_u10avx512f(__m512);
HEDDLE_AVX512 __m512 Sleef_cosf16_u10avx512f(__m512);
HEDDLE_AVX512 __m512 Sleef_erff16_u10avx512f(__m512);
HEDDLE_AVX512 __m512 Sleef_expm1f16_u10avx512f(__m512);
HEDDLE_AVX512 __m512 Sleef_log1pf16_u10avx512f(__m512);
HEDDLE_AVX512 __m512 Sleef_tanf16_u10avx512f(__m512);
HEDDLE_AVX512 __m512 Sleef_atanf16_u10avx512f(__m512);
HEDDLE_AVX512 __m512 Sleef_powf16_u10avx512f(__m512, __m512);
HEDDLE_AVX512 __m512d Sleef_logd8_u10avx512f(__m512d);
HEDDLE_AVX512 __m512d Sleef_log2d8_u10avx512f(__m512d);
HEDDLE_AVX512 __m512d Sleef_sind8_u10avx512f(__m512d);
HEDDLE_AVX512 __m512d Sleef_cosd8_u10avx512f(__m512d);
HEDDLE_AVX512 __m512d Sleef_erfd8_u10avx512f(__m512d);
HEDDLE_AVX512 __m512d Sleef_expm1d8_u10avx512f(__m512d);
HEDDLE_AVX512 __m512d Sleef_log1pd8_u10avx512f(__m512d);
HEDDLE_AVX512 __m512d Sleef_tand8_u10avx512f(__m512d);
HEDDLE_AVX512 __m512d Sleef_atand8_u10avx512f(__m512d);
#endif

}  // extern "C"

#undef HEDDLE_AVX2
#undef HEDDLE_AVX512
