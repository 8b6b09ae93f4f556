// The matrix instructions: sizes, element types, cycles, and where each element of A, B and C lies.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace heddle::amd::simulator {

enum class ElementType : std::uint8_t { kF16, kBf16, kF32, kF64, kI8, kFp8, kBf8, kI32 };

/// D[m][n] = sum over k of A[m][k] * B[k][n] + C[m][n], for each of `blocks` independent products.
struct MatrixForm {
  const char* name;
  const char* older_name;  ///< gfx90a's, or nullptr
  int generation;          ///< 9, 11 or 12
  int m, n, k, blocks;
  ElementType a, b, c;
  int cycles;
  int gfx90a_cycles;
};

/// Where an element lies: in register `number` (from the operand's first), of lane `lane`, from bit `shift` on. f64
/// takes that register and the next.
struct Cell {
  std::int16_t number;
  std::uint8_t lane;
  std::uint8_t shift;
};

/// A[row][k] of a block; B[k][column] lies where A[column][k] of a form with m and n exchanged does.
/// gfx11: lanes 0 to 15; lanes 16 to 31 must hold the same once more.
Cell a_cell(const MatrixForm& form, int block, int row, int k);
Cell b_cell(const MatrixForm& form, int block, int k, int column);
Cell c_cell(const MatrixForm& form, int block, int row, int column);

std::span<const MatrixForm> matrix_forms();
/// The index of the form among matrix_forms(), or -1.
int find_matrix_form(std::string_view name, int generation);

constexpr int bits_of(ElementType type) {
  switch (type) {
    case ElementType::kF64:
      return 64;
    case ElementType::kF32:
    case ElementType::kI32:
      return 32;
    case ElementType::kF16:
    case ElementType::kBf16:
      return 16;
    default:
      return 8;
  }
}

}  // namespace heddle::amd::simulator
