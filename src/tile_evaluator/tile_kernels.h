// The interface between the tile evaluator and its SIMD kernels: a kernel runs one instruction over rows x columns of
// elements. Kernels are compiled once for each SIMD target; this header is not.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "expr/interpret.h"
#include "heddle/tensor.h"
#include "tile_evaluator/tile_program.h"

namespace heddle::cpu {

/// Rows of a tile have their columns rounded up to a multiple of this many elements, a whole vector of any target.
inline constexpr int kColumnStep = 16;

/// An element that is spread out for vectors stands as often as it takes to fill two of the widest ones: loops take two
/// at a time, by the same offsets for spread operands as for others.
inline constexpr int kSpreadBytes = 128;
inline constexpr int kSpreadElements = kSpreadBytes / 4;

/// An operand: element (r, c) lies at base + r * row + c * column, in bytes. If `column` is 0, kSpreadBytes of equal
/// elements stand at the row's address; reads and draws take one element from there.
struct TileOperand {
  const std::byte* base = nullptr;
  std::ptrdiff_t row = 0, column = 0;
};

/// A capture as reads use it.
struct BoundCapture {
  const std::byte* data = nullptr;
  DType dtype = DType::f32;
  int rank = 0;
  bool empty = false;   // an extent is 0: there is nothing to read
  bool narrow = false;  // every offset, counted in elements, fits i32
  std::array<std::int64_t, kMaxRank> extent{}, stride{};
};

inline constexpr int kMaxOperands = kMaxRank + 1;

struct TileArguments {
  int rows = 0, columns = 0;  // columns: a multiple of kColumnStep
  std::byte* out = nullptr;
  std::ptrdiff_t out_row = 0;  // bytes
  std::array<TileOperand, kMaxOperands> in{};
  // Reads and draws alone:
  int used_columns = 0;  // the columns that matter; the others may get any value
  const BoundCapture* capture = nullptr;
  int column_axis = -1;   // as in Instruction
  bool has_fill = false;  // at: in[rank]
};

using TileKernel = void (*)(const TileArguments&);

/// The kernels of one target and precision. Null where no instruction can ask for one.
struct TileKernels {
  std::array<std::array<TileKernel, 3>, expr::kOpCount> op{};  // by operation and form
  std::array<TileKernel, 3> copy{}, read{};                    // by form
  std::array<TileKernel, 3> select_lt{}, select_le{}, select_eq{};
  TileKernel mul_add = nullptr, shift_right = nullptr, bit_and = nullptr, draw_row = nullptr;
  /// Each of `count` elements as often as kSpreadBytes hold it; by form.
  std::array<void (*)(const std::byte* values, int count, std::byte* out), 3> spread{};
  /// out[i] = first + i * step for i < count, rounded up to a whole vector.
  void (*count_from)(std::int32_t* out, std::int32_t first, std::int32_t step, int count) = nullptr;
  /// How many of the first `columns` lanes of each row are true.
  std::int64_t (*count_true)(const TileOperand& values, int rows, int columns) = nullptr;
};

/// The kernels of the best target that hwy::SupportedTargets() allows now.
const TileKernels& tile_kernels_f32();
const TileKernels& tile_kernels_f64();

}  // namespace heddle::cpu
