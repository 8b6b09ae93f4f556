// AMX's eight registers of 16 rows of 64 bytes, and a stand-in that computes the same bits with vectors: a kernel takes
// one or the other as a template argument. For AVX-512 alone.

// A guard that toggles, as Highway's per-target headers have.
#if defined(HEDDLE_CPU_MATRIX_REGISTERS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEDDLE_CPU_MATRIX_REGISTERS_INL_H_
#undef HEDDLE_CPU_MATRIX_REGISTERS_INL_H_
#else
#define HEDDLE_CPU_MATRIX_REGISTERS_INL_H_
#endif

#include <hwy/highway.h>

#include <cstdint>
#include <cstring>

// GCC's assembler takes every instruction; clang's takes those of the function's target.
#ifdef __clang__
#define HEDDLE_AMX __attribute__((target(HWY_TARGET_STR ",amx-tile,amx-bf16,avx512bf16")))
#else
#define HEDDLE_AMX
#endif

#if HWY_ARCH_X86_64
#include <immintrin.h>
#endif

#if HWY_ARCH_X86_64 && HWY_TARGET == HWY_AVX3
HWY_BEFORE_NAMESPACE();
namespace heddle::cpu::HWY_NAMESPACE {

namespace detail {

/// The operand of `ldtilecfg`. All registers have their full size: smaller ones are no faster.
struct alignas(64) RegisterShapes {
  std::uint8_t palette = 0, start_row = 0, reserved[14] = {};
  std::uint16_t row_bytes[16] = {};
  std::uint8_t rows[16] = {};
};

inline constexpr RegisterShapes kFullRegisters = [] {
  RegisterShapes shapes;
  shapes.palette = 1;
  for (int i = 0; i < 8; ++i) {
    shapes.row_bytes[i] = 64;
    shapes.rows[i] = 16;
  }
  return shapes;
}();

/// The instructions. The shapes that a thread had before come back at the end: another library may count on its own.
/// GCC's intrinsics declare less memory than the instructions touch, so the statements are our own.
class AmxRegisters {
 public:
  HEDDLE_AMX AmxRegisters() {
    asm volatile("sttilecfg %0" : "=m"(before_));
    asm volatile("ldtilecfg %0" : : "m"(kFullRegisters));
  }
  HEDDLE_AMX ~AmxRegisters() {
    if (before_.palette == 0) {
      asm volatile("tilerelease");
    } else {
      asm volatile("ldtilecfg %0" : : "m"(before_));
    }
  }
  AmxRegisters(const AmxRegisters&) = delete;
  AmxRegisters& operator=(const AmxRegisters&) = delete;

  template <int kRegister>
  HEDDLE_AMX HWY_INLINE void zero() {
    asm volatile("tilezero %%tmm%c0" : : "i"(kRegister));
  }
  template <int kRegister>
  HEDDLE_AMX HWY_INLINE void load(const void* from, std::int64_t stride) {
    asm volatile("tileloadd (%1,%2,1), %%tmm%c0" : : "i"(kRegister), "r"(from), "r"(stride) : "memory");
  }
  /// For what passes through once: it does not push the rest out of L1.
  template <int kRegister>
  HEDDLE_AMX HWY_INLINE void load_once(const void* from, std::int64_t stride) {
    asm volatile("tileloaddt1 (%1,%2,1), %%tmm%c0" : : "i"(kRegister), "r"(from), "r"(stride) : "memory");
  }
  template <int kRegister>
  HEDDLE_AMX HWY_INLINE void store(void* to, std::int64_t stride) {
    asm volatile("tilestored %%tmm%c0, (%1,%2,1)" : : "i"(kRegister), "r"(to), "r"(stride) : "memory");
  }
  /// c += a b: rows of 32 bf16 in a, 16 pairs of rows of 16 columns in b.
  template <int kC, int kA, int kB>
  HEDDLE_AMX HWY_INLINE void multiply() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kC), "i"(kA), "i"(kB));
  }
  /// 32 bf16, those of `low` first, rounded to nearest even.
  HEDDLE_AMX HWY_INLINE static __m512i round(__m512 low, __m512 high) {
    __m512i rounded;
    asm("vcvtne2ps2bf16 %1, %2, %0" : "=v"(rounded) : "v"(low), "v"(high));
    return rounded;
  }
  /// sum[i] += bf16 numbers 2 i + 1 and 2 i.
  HEDDLE_AMX HWY_INLINE static __m512 add_pairs(__m512 sum, __m512i pairs) {
    const __m512i ones = _mm512_set1_epi32(0x3f803f80);
    asm("vdpbf16ps %1, %2, %0" : "+v"(sum) : "v"(ones), "v"(pairs));
    return sum;
  }

 private:
  RegisterShapes before_;
};

/// Rows [16][16 pairs] of c += a b, as AMX does it: even and odd elements in a chain each, their sum added to c. Runs
/// with subnormal numbers flushed to 0.
HWY_NOINLINE inline void MultiplyRegisters(const std::uint32_t (*a)[16], const std::uint32_t (*b)[16],
                                           std::uint32_t (*c)[16]) {
  const __m512i high = _mm512_set1_epi32(static_cast<int>(0xffff0000U));
  for (int row = 0; row < 16; ++row) {
    __m512 even = _mm512_setzero_ps(), odd = _mm512_setzero_ps();
    for (int pair = 0; pair < 16; ++pair) {
      const __m512i left = _mm512_set1_epi32(static_cast<int>(a[row][pair])), right = _mm512_load_si512(b[pair]);
      even = _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_slli_epi32(left, 16)),
                             _mm512_castsi512_ps(_mm512_slli_epi32(right, 16)), even);
      odd = _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_and_si512(left, high)),
                            _mm512_castsi512_ps(_mm512_and_si512(right, high)), odd);
    }
    _mm512_store_ps(c[row], _mm512_add_ps(_mm512_load_ps(c[row]), _mm512_add_ps(even, odd)));
  }
}

class EmulatedRegisters {
 public:
  template <int kRegister>
  void zero() {
    std::memset(rows_[kRegister], 0, sizeof(rows_[kRegister]));
  }
  template <int kRegister>
  void load(const void* from, std::int64_t stride) {
    for (int row = 0; row < 16; ++row) std::memcpy(rows_[kRegister][row], at(from, row * stride), 64);
  }
  template <int kRegister>
  void load_once(const void* from, std::int64_t stride) {
    load<kRegister>(from, stride);
  }
  template <int kRegister>
  void store(void* to, std::int64_t stride) {
    for (int row = 0; row < 16; ++row) {
      std::memcpy(static_cast<std::byte*>(to) + row * stride, rows_[kRegister][row], 64);
    }
  }
  template <int kC, int kA, int kB>
  void multiply() {
    constexpr unsigned kFlush = 0x8040;  // results and operands
    const unsigned before = _mm_getcsr();
    _mm_setcsr(before | kFlush);
    MultiplyRegisters(rows_[kA], rows_[kB], rows_[kC]);
    _mm_setcsr(before);
  }
  HWY_INLINE static __m512i round(__m512 low, __m512 high) {
    return _mm512_inserti64x4(_mm512_castsi256_si512(round(low)), round(high), 1);
  }
  /// For numbers and sums that are 0 or not subnormal.
  HWY_INLINE static __m512 add_pairs(__m512 sum, __m512i pairs) {
    const __m512i high = _mm512_set1_epi32(static_cast<int>(0xffff0000U));
    sum = _mm512_add_ps(sum, _mm512_castsi512_ps(_mm512_and_si512(pairs, high)));
    return _mm512_add_ps(sum, _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16)));
  }

 private:
  static const std::byte* at(const void* from, std::int64_t offset) {
    return static_cast<const std::byte*>(from) + offset;
  }
  HWY_INLINE static __m256i round(__m512 x) {
    const __m512i bits = _mm512_castps_si512(x), magnitude = _mm512_and_si512(bits, _mm512_set1_epi32(0x7fffffff));
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    const __mmask16 is_nan = _mm512_cmpgt_epu32_mask(magnitude, _mm512_set1_epi32(0x7f800000));
    rounded = _mm512_mask_or_epi32(rounded, is_nan, bits, _mm512_set1_epi32(0x00400000));
    const __mmask16 tiny = _mm512_cmplt_epu32_mask(magnitude, _mm512_set1_epi32(0x00800000));
    rounded = _mm512_mask_and_epi32(rounded, tiny, bits, _mm512_set1_epi32(static_cast<int>(0x80000000U)));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16));
  }

  alignas(64) std::uint32_t rows_[8][16][16];
};

}  // namespace detail

}  // namespace heddle::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // AVX-512

#endif  // the toggling guard
