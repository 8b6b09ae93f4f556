// An expression as a list of instructions, each over values of one extent (tile_lowering.h makes it). No SIMD here: the
// list can be printed and tested on its own.
//
// A value's extent says what it varies over within a tile. Beside scalars, rows and columns there are diagonals: values
// that depend on row and column through `kv_idx - q_idx` alone (distances, and everything computed from them: ALiBi,
// relative biases, causal and sliding masks). One vector of rows + columns - 1 values holds a diagonal; row r of the
// tile reads it from an offset of -r. So only what truly depends on both is computed for each element.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "expr/node.h"

namespace heddle::cpu {

enum class Extent : std::uint8_t { scalar, row, column, diagonal, tile };
inline constexpr int kExtentCount = 5;

/// Where an operand comes from: slot `index` of its extent. A tile's slots are registers.
struct Source {
  Extent extent = Extent::scalar;
  ExprType type = ExprType::f32;
  int index = 0;
  bool operator==(const Source&) const = default;
};
/// The tile register that stands for the caller's score, and the one that stands for the result.
inline constexpr int kScore = -1;
inline constexpr int kResult = 0;

enum class Code : std::uint8_t {
  op,           // Instruction::op, element by element
  copy,         // in[0]
  mul_add,      // in[0] * in[1] + in[2], each rounded
  select_lt,    // in[0] < in[1] ? in[2] : in[3]
  select_le,    //
  select_eq,    //
  shift_right,  // in[0] >> in[1], a scalar: // by a power of two
  bit_and,      // in[0] & in[1]: % by a power of two
  read,         // element of a capture at indices in[0], in[1], ...; for at, the fill comes last
  draw_row,     // random_uniform where in[4] is the kv_idx of column 0 and grows by one from column to column
};

struct Instruction {
  Code code = Code::op;
  expr::Op op = expr::Op::constant;  // of Code::op, and read or at
  ExprType form = ExprType::f32;     // the type of the operands, which chooses the kernel
  Source out;
  std::vector<Source> in;
  int capture = -1;      // of reads: index into Program::captures
  int column_axis = -1;  // of reads into a tile: the axis whose index is in[axis] + column; -1: no such axis
};

/// A leaf as the operand of an instruction.
struct LeafValue {
  expr::Leaf leaf;
  Source out;
};
/// A constant or a param.
struct FixedValue {
  expr::Payload payload;
  Source out;
};

/// A diagonal comparison x < y is one of x - y < 0, so it holds only where neither side wraps inside the tile: there
/// the side is first + row * per_row + column * per_column, exactly.
struct Guard {
  Source first;  // scalar: the side's value at row 0, column 0
  std::int32_t per_row, per_column;
};

struct Program {
  ExprType type = ExprType::f32;
  std::vector<FixedValue> fixed;  // scalars, once for all runs
  std::vector<Instruction> once;  // scalars that follow from them
  std::vector<LeafValue> leaves;
  std::array<std::vector<Instruction>, kExtentCount> steps;  // by extent, in this order
  std::vector<Guard> guards;                                 // hold, or the tile needs another program
  std::vector<expr::CaptureDecl> captures;
  std::array<int, kExtentCount> slots{};  // of each extent; of the tile: registers, the result's included
  std::vector<Source> spread;             // rows that instructions of the tile use: spread to whole vectors
};

std::string to_string(const Program& program);

}  // namespace heddle::cpu
