// The kernels of hopper_rates: their sources, and what their parameters mean on the host's side.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "backend/cuda/jit/cuda_jit.h"

namespace heddle::bench {

/// As in instructions.cuh.
struct Span {
  std::int64_t begin, end, begin_ns, end_ns, steps;
  double clocks() const { return static_cast<double>(end - begin); }
  double seconds() const { return 1e-9 * static_cast<double>(end_ns - begin_ns); }
};

/// Kernel "products": m64n(columns)k16.
cuda::jit::Source products_source(int columns);
inline constexpr std::array kProductColumns{64, 80, 96, 128, 192, 256};
inline constexpr int kProductsAStep = 8;
/// Shared memory of "products" and "pipes".
constexpr int operand_bytes(int columns, int warpgroups) { return columns * 128 + warpgroups * 64 * 128; }

/// Kernel "pipes", whose products have 128 columns.
cuda::jit::Source pipes_source();
inline constexpr int kPipeColumns = 128;
inline constexpr int kOperationsAStep = 128;
struct Operation {
  const char* name;     // "ex2"
  const char* meaning;  // "2^x"
};
/// In the order of the switch of pipes.cuh.
inline constexpr std::array kOperations{
    Operation{"ex2", "MUFU.EX2"},
    Operation{"tanh", "MUFU.TANH"},
    Operation{"ffma", "FFMA of one changing register"},
    Operation{"fadd", "FADD"},
    Operation{"fmul", "FMUL"},
    Operation{"fmnmx", "FMNMX"},
    Operation{"cvt", "F2FP, two floats to bf16x2"},
    Operation{"lop3", "LOP3"},
    Operation{"iadd3", "IADD3"},
    Operation{"imad", "IMAD"},
    Operation{"select", "FSETP and FSEL"},
    Operation{"shfl", "SHFL"},
    Operation{"softmax", "a score: subtract, EX2, sum, to bf16"},
    Operation{"softmax_max", "a score: the same with a running maximum"},
};
inline constexpr int kExp2 = 0, kSoftmax = 12;

/// Kernel "loads": tiles of kTileRows rows of kTileRowBytes.
cuda::jit::Source loads_source();
inline constexpr int kTileRows = 128, kTileRowBytes = 128, kTileBytes = kTileRows * kTileRowBytes;
inline constexpr int kLoadStages = 8;

/// Kernels "copies" and "nothing".
cuda::jit::Source copies_source();
cuda::jit::Source nothing_source();
struct NothingParameters {
  char bytes[512];
};

/// All of the above.
std::vector<cuda::jit::Source> all_sources();

}  // namespace heddle::bench
