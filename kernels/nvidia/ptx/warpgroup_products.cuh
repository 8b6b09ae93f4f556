// Products of a warpgroup in the shapes of decode_mma (portable/fragments/warpgroup.cuh), of 16-bit elements: d is
// an accumulator as wgmma.cuh lays it out. (Tests on the host bring a file of their own under this name.)
#pragma once

#include "ptx/wgmma.cuh"

namespace heddle::ptx {

// Operands that an accumulator's registers are, eight at a time.
#define HEDDLE_EIGHT(d, i)                                                                                    \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), \
      "+f"(d[i + 7])
#define HEDDLE_PRODUCT_OF_32(type)                                                                              \
  asm volatile(                                                                                                 \
      "{\n.reg .pred adds;\nsetp.ne.b32 adds, %18, 0;\n"                                                        \
      "wgmma.mma_async.sync.aligned.m64n32k16.f32." type "." type                                               \
      " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, %16, %17, adds, 1, 1, 0, 0;\n}" \
      : HEDDLE_EIGHT(d, 0), HEDDLE_EIGHT(d, 8)                                                                  \
      : "l"(a), "l"(b), "r"(accumulate))
#define HEDDLE_PRODUCT_OF_64(type)                                                                             \
  asm volatile(                                                                                                \
      "{\n.reg .pred adds;\nsetp.ne.b32 adds, %34, 0;\n"                                                       \
      "wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type                                              \
      " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, " \
      "%22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, %32, %33, adds, 1, 1, 0, 0;\n}"                      \
      : HEDDLE_EIGHT(d, 0), HEDDLE_EIGHT(d, 8), HEDDLE_EIGHT(d, 16), HEDDLE_EIGHT(d, 24)                       \
      : "l"(a), "l"(b), "r"(accumulate))
#define HEDDLE_SUM_OF_64(type)                                                                                 \
  asm volatile(                                                                                                \
      "{\n.reg .pred adds;\nsetp.ne.b32 adds, 1, 0;\n"                                                         \
      "wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type                                              \
      " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, " \
      "%22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, {%32, %33, %34, %35}, %36, adds, 1, 1, 1;\n}"        \
      : HEDDLE_EIGHT(d, 0), HEDDLE_EIGHT(d, 8), HEDDLE_EIGHT(d, 16), HEDDLE_EIGHT(d, 24)                       \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))
// d += a b, 64 x 128 x 16, of 64 registers of d: the instruction's other operands, as text, and as values.
#define HEDDLE_SUM_OF_128(type, operands, ...)                                                                 \
  asm volatile(                                                                                                \
      "{\n.reg .pred adds;\nsetp.ne.b32 adds, 1, 0;\n"                                                         \
      "wgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type                                             \
      " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, " \
      "%22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, "   \
      "%42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, "   \
      "%62, %63}, " operands ";\n}"                                                                            \
      : HEDDLE_EIGHT(d, 0), HEDDLE_EIGHT(d, 8), HEDDLE_EIGHT(d, 16), HEDDLE_EIGHT(d, 24), HEDDLE_EIGHT(d, 32), \
        HEDDLE_EIGHT(d, 40), HEDDLE_EIGHT(d, 48), HEDDLE_EIGHT(d, 56)                                          \
      : __VA_ARGS__)
#define HEDDLE_PRODUCT_IN_MEMORY_OF_128(type) HEDDLE_SUM_OF_128(type, "%64, %65, adds, 1, 1, 0, 1", "l"(a), "l"(b))
#define HEDDLE_PRODUCT_OF_128(type)                                                                               \
  HEDDLE_SUM_OF_128(type, "{%64, %65, %66, %67}, %68, adds, 1, 1, 1", "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), \
                    "l"(b))

/// d = a b, or d += a b, 64 x 32 x 16: both in shared memory, with neighbours of a sum side by side (K-major).
template <bool kF16>
__device__ __forceinline__ void product_of_32(float (&d)[16], unsigned long long a, unsigned long long b,
                                              int accumulate) {
  if constexpr (kF16) {
    HEDDLE_PRODUCT_OF_32("f16");
  } else {
    HEDDLE_PRODUCT_OF_32("bf16");
  }
}
/// Likewise, 64 x 64 x 16.
template <bool kF16>
__device__ __forceinline__ void product_of_64(float (&d)[32], unsigned long long a, unsigned long long b,
                                              int accumulate) {
  if constexpr (kF16) {
    HEDDLE_PRODUCT_OF_64("f16");
  } else {
    HEDDLE_PRODUCT_OF_64("bf16");
  }
}
/// d += a b, 64 x 64 x 16: a in registers, b in shared memory with its columns side by side (MN-major).
template <bool kF16>
__device__ __forceinline__ void add_product_of_64(float* d, const unsigned* a, unsigned long long b) {
  if constexpr (kF16) {
    HEDDLE_SUM_OF_64("f16");
  } else {
    HEDDLE_SUM_OF_64("bf16");
  }
}
/// Likewise, 64 x 128 x 16.
template <bool kF16>
__device__ __forceinline__ void add_product_of_128(float* d, const unsigned* a, unsigned long long b) {
  if constexpr (kF16) {
    HEDDLE_PRODUCT_OF_128("f16");
  } else {
    HEDDLE_PRODUCT_OF_128("bf16");
  }
}
/// Likewise, with a in shared memory (K-major).
template <bool kF16>
__device__ __forceinline__ void add_product_of_128(float* d, unsigned long long a, unsigned long long b) {
  if constexpr (kF16) {
    HEDDLE_PRODUCT_IN_MEMORY_OF_128("f16");
  } else {
    HEDDLE_PRODUCT_IN_MEMORY_OF_128("bf16");
  }
}

#undef HEDDLE_PRODUCT_OF_128
#undef HEDDLE_PRODUCT_IN_MEMORY_OF_128
#undef HEDDLE_SUM_OF_128
#undef HEDDLE_SUM_OF_64
#undef HEDDLE_PRODUCT_OF_64
#undef HEDDLE_PRODUCT_OF_32
#undef HEDDLE_EIGHT

}  // namespace heddle::ptx
