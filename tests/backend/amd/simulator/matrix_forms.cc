#include "backend/amd/simulator/matrix_forms.h"

namespace heddle::amd::simulator {
namespace {

using enum ElementType;

// Cycles: of AMD's matrix-instruction calculator.
constexpr MatrixForm kForms[] = {
    {"v_wmma_f32_16x16x16_f16", nullptr, 11, 16, 16, 16, 1, kF16, kF16, kF32, 32, 0},
    {"v_wmma_f32_16x16x16_bf16", nullptr, 11, 16, 16, 16, 1, kBf16, kBf16, kF32, 32, 0},
    {"v_wmma_i32_16x16x16_iu8", nullptr, 11, 16, 16, 16, 1, kI8, kI8, kI32, 32, 0},
    {"v_wmma_f32_16x16x16_f16", nullptr, 12, 16, 16, 16, 1, kF16, kF16, kF32, 16, 0},
    {"v_wmma_f32_16x16x16_bf16", nullptr, 12, 16, 16, 16, 1, kBf16, kBf16, kF32, 16, 0},
    {"v_wmma_i32_16x16x16_iu8", nullptr, 12, 16, 16, 16, 1, kI8, kI8, kI32, 16, 0},
    {"v_wmma_f32_16x16x16_fp8_fp8", nullptr, 12, 16, 16, 16, 1, kFp8, kFp8, kF32, 8, 0},
    {"v_wmma_f32_16x16x16_fp8_bf8", nullptr, 12, 16, 16, 16, 1, kFp8, kBf8, kF32, 8, 0},
    {"v_wmma_f32_16x16x16_bf8_fp8", nullptr, 12, 16, 16, 16, 1, kBf8, kFp8, kF32, 8, 0},
    {"v_wmma_f32_16x16x16_bf8_bf8", nullptr, 12, 16, 16, 16, 1, kBf8, kBf8, kF32, 8, 0},
    {"v_mfma_f32_32x32x8_f16", "v_mfma_f32_32x32x8f16", 9, 32, 32, 8, 1, kF16, kF16, kF32, 32, 64},
    {"v_mfma_f32_16x16x16_f16", "v_mfma_f32_16x16x16f16", 9, 16, 16, 16, 1, kF16, kF16, kF32, 16, 32},
    {"v_mfma_f32_32x32x4_2b_f16", "v_mfma_f32_32x32x4f16", 9, 32, 32, 4, 2, kF16, kF16, kF32, 64, 64},
    {"v_mfma_f32_16x16x4_4b_f16", "v_mfma_f32_16x16x4f16", 9, 16, 16, 4, 4, kF16, kF16, kF32, 32, 32},
    {"v_mfma_f32_4x4x4_16b_f16", "v_mfma_f32_4x4x4f16", 9, 4, 4, 4, 16, kF16, kF16, kF32, 8, 8},
    {"v_mfma_f32_32x32x8_bf16", "v_mfma_f32_32x32x8bf16_1k", 9, 32, 32, 8, 1, kBf16, kBf16, kF32, 32, 64},
    {"v_mfma_f32_16x16x16_bf16", "v_mfma_f32_16x16x16bf16_1k", 9, 16, 16, 16, 1, kBf16, kBf16, kF32, 16, 32},
    {"v_mfma_f32_32x32x4_2b_bf16", "v_mfma_f32_32x32x4bf16_1k", 9, 32, 32, 4, 2, kBf16, kBf16, kF32, 64, 64},
    {"v_mfma_f32_16x16x4_4b_bf16", "v_mfma_f32_16x16x4bf16_1k", 9, 16, 16, 4, 4, kBf16, kBf16, kF32, 32, 32},
    {"v_mfma_f32_4x4x4_16b_bf16", "v_mfma_f32_4x4x4bf16_1k", 9, 4, 4, 4, 16, kBf16, kBf16, kF32, 8, 8},
    {"v_mfma_f32_32x32x2_f32", "v_mfma_f32_32x32x2f32", 9, 32, 32, 2, 1, kF32, kF32, kF32, 64, 64},
    {"v_mfma_f32_16x16x4_f32", "v_mfma_f32_16x16x4f32", 9, 16, 16, 4, 1, kF32, kF32, kF32, 32, 32},
    {"v_mfma_f32_32x32x1_2b_f32", "v_mfma_f32_32x32x1f32", 9, 32, 32, 1, 2, kF32, kF32, kF32, 64, 64},
    {"v_mfma_f32_16x16x1_4b_f32", "v_mfma_f32_16x16x1f32", 9, 16, 16, 1, 4, kF32, kF32, kF32, 32, 32},
    {"v_mfma_f32_4x4x1_16b_f32", "v_mfma_f32_4x4x1f32", 9, 4, 4, 1, 16, kF32, kF32, kF32, 8, 8},
    {"v_mfma_f64_16x16x4_f64", "v_mfma_f64_16x16x4f64", 9, 16, 16, 4, 1, kF64, kF64, kF64, 32, 32},
    {"v_mfma_i32_32x32x16_i8", nullptr, 9, 32, 32, 16, 1, kI8, kI8, kI32, 32, 0},
    {"v_mfma_i32_16x16x32_i8", nullptr, 9, 16, 16, 32, 1, kI8, kI8, kI32, 16, 0},
    {"v_mfma_f32_32x32x16_fp8_fp8", nullptr, 9, 32, 32, 16, 1, kFp8, kFp8, kF32, 32, 0},
    {"v_mfma_f32_32x32x16_fp8_bf8", nullptr, 9, 32, 32, 16, 1, kFp8, kBf8, kF32, 32, 0},
    {"v_mfma_f32_32x32x16_bf8_fp8", nullptr, 9, 32, 32, 16, 1, kBf8, kFp8, kF32, 32, 0},
    {"v_mfma_f32_32x32x16_bf8_bf8", nullptr, 9, 32, 32, 16, 1, kBf8, kBf8, kF32, 32, 0},
    {"v_mfma_f32_16x16x32_fp8_fp8", nullptr, 9, 16, 16, 32, 1, kFp8, kFp8, kF32, 16, 0},
    {"v_mfma_f32_16x16x32_fp8_bf8", nullptr, 9, 16, 16, 32, 1, kFp8, kBf8, kF32, 16, 0},
    {"v_mfma_f32_16x16x32_bf8_fp8", nullptr, 9, 16, 16, 32, 1, kBf8, kFp8, kF32, 16, 0},
    {"v_mfma_f32_16x16x32_bf8_bf8", nullptr, 9, 16, 16, 32, 1, kBf8, kBf8, kF32, 16, 0},
};

/// The element `slot` of those that a lane holds one after another.
Cell in_lane(int slot, int lane, ElementType type) {
  const int bits = bits_of(type);
  if (bits == 64) return {static_cast<std::int16_t>(2 * slot), static_cast<std::uint8_t>(lane), 0};
  const int each = 32 / bits;
  return {static_cast<std::int16_t>(slot / each), static_cast<std::uint8_t>(lane),
          static_cast<std::uint8_t>(slot % each * bits)};
}

/// Row `row` of A, or column `row` of B, of a form with `rows` of them.
Cell operand_cell(const MatrixForm& form, int block, int row, int rows, int k, ElementType type) {
  switch (form.generation) {
    case 11:
      return in_lane(k, row, type);
    case 12:
      if (bits_of(type) == 16) return in_lane(4 * (k / 8) + k % 4, row + 16 * (k / 4 % 2), type);  // runs of four k's
      return in_lane(k % 8, row + 16 * (k / 8), type);
    default: {  // a lane holds a run of k's
      const int run = rows * form.blocks * form.k / 64;
      return in_lane(k % run, row + rows * (block + form.blocks * (k / run)), type);
    }
  }
}

}  // namespace

Cell a_cell(const MatrixForm& form, int block, int row, int k) {
  return operand_cell(form, block, row, form.m, k, form.a);
}

Cell b_cell(const MatrixForm& form, int block, int k, int column) {
  return operand_cell(form, block, column, form.n, k, form.b);
}

Cell c_cell(const MatrixForm& form, int block, int row, int column) {
  if (form.generation == 11)
    return {static_cast<std::int16_t>(row / 2), static_cast<std::uint8_t>(column + 16 * (row % 2)), 0};
  if (form.generation == 12)
    return {static_cast<std::int16_t>(row % 8), static_cast<std::uint8_t>(column + 16 * (row / 8)), 0};
  // MFMA: rows in groups of four (f64: of one), dealt to the groups of n lanes in turn.
  const int group = form.c == kF64 ? 1 : 4, lane_groups = 64 / form.n;
  const int unit = (block * form.m + row) / group;
  return in_lane(unit / lane_groups * group + row % group, unit % lane_groups * form.n + column, form.c);
}

std::span<const MatrixForm> matrix_forms() { return kForms; }

int find_matrix_form(std::string_view name, int generation) {
  for (std::size_t i = 0; i < std::size(kForms); ++i) {
    const MatrixForm& form = kForms[i];
    if (form.generation == generation && (name == form.name || (form.older_name && name == form.older_name)))
      return static_cast<int>(i);
  }
  return -1;
}

}  // namespace heddle::amd::simulator
