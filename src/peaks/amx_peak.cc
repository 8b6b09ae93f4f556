#include "peaks/amx_peak.h"

#include <array>
#include <cstdint>

#include "backend/cpu/matrix_unit.h"
#include "heddle/error.h"
#include "peaks/thread_rate.h"

namespace heddle::peaks {

bool has_amx() { return cpu::find_matrix_unit() == device::MatrixUnit::amx; }

#if defined(__x86_64__)
namespace {

// GCC's assembler takes every instruction; clang's takes those of the function's target.
#ifdef __clang__
#define HEDDLE_PEAKS_AMX __attribute__((target("amx-tile,amx-bf16")))
#else
#define HEDDLE_PEAKS_AMX
#endif

/// The operand of `ldtilecfg`: eight registers of 16 rows of 64 bytes.
struct alignas(64) Shapes {
  std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
  std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

/// Six accumulators take turns, which hides the latency of a product. Returns the flops done. The operands are small
/// numbers: products of zeros may cost less power, and a cooler processor runs faster.
HEDDLE_PEAKS_AMX double multiply_registers() {
  constexpr int kSteps = 500, kAccumulators = 6;
  constexpr std::uint16_t kSmall = 0x3a83;  // bf16 of 0.001
  static const Shapes shapes;
  Shapes before;
  alignas(64) std::array<std::uint16_t, 16 * 32> operand;
  operand.fill(kSmall);
  constexpr std::int64_t kStride = 64;
  asm volatile("sttilecfg %0" : "=m"(before));
  asm volatile("ldtilecfg %0" : : "m"(shapes));
  asm volatile(
      "tilezero %%tmm0\n\ttilezero %%tmm1\n\ttilezero %%tmm2\n\ttilezero %%tmm3\n\ttilezero %%tmm4\n\t"
      "tilezero %%tmm5\n\ttileloadd (%0,%1,1), %%tmm6\n\ttileloadd (%0,%1,1), %%tmm7"
      :
      : "r"(operand.data()), "r"(kStride)
      : "memory");
  for (int step = 0; step < kSteps; ++step) {
    asm volatile(
        "tdpbf16ps %%tmm7, %%tmm6, %%tmm0\n\ttdpbf16ps %%tmm7, %%tmm6, %%tmm1\n\t"
        "tdpbf16ps %%tmm7, %%tmm6, %%tmm2\n\ttdpbf16ps %%tmm7, %%tmm6, %%tmm3\n\t"
        "tdpbf16ps %%tmm7, %%tmm6, %%tmm4\n\ttdpbf16ps %%tmm7, %%tmm6, %%tmm5" ::);
  }
  if (before.palette == 0) {
    asm volatile("tilerelease");
  } else {
    asm volatile("ldtilecfg %0" : : "m"(before));
  }
  return 2.0 * 16 * 16 * 32 * kAccumulators * kSteps;
}

}  // namespace

double amx_peak_gflops(int threads, double milliseconds) {
  if (!has_amx()) throw Error(ErrorCode::internal, "amx_peak_gflops was called where nothing multiplies with AMX");
  return 1e-9 * rate_on_threads(threads, milliseconds * 1e-3, multiply_registers);
}
#else
double amx_peak_gflops(int, double) {
  throw Error(ErrorCode::internal, "amx_peak_gflops was called where nothing multiplies with AMX");
}
#endif

}  // namespace heddle::peaks
