// Text of operands and modifiers to their values.
#pragma once

#include <string>
#include <string_view>

#include "backend/amd/simulator/assembly_line.h"
#include "backend/amd/simulator/instruction.h"

namespace heddle::amd::simulator {

/// The letters of signatures: f F32, d F64, h F16, i I32, s I16, l I64, p and q packed F16 and I16, w packed F32, x
/// mix, m mask.
Type type_of_letter(char letter);

/// Registers that an operand of this type takes in a wave of `lanes` lanes.
int registers_of(Type type, int lanes);

/// `text` is a register, a range of them or a constant, perhaps with `-`, `|x|` or `sext(x)` around it. A constant's
/// meaning depends on the type: 1.0 is 0x3c00 as an f16.
/// \throws std::runtime_error for text that is none of these
Operand parse_operand(std::string_view text, Type type, int lanes);

/// Registers as many as the text names; `off` and `null` are no operand.
Operand parse_registers(std::string_view text);

/// Sets what the modifiers of `line` ask for.
/// \throws std::runtime_error for a modifier that is not known
void apply_modifiers(const AssemblyLine& line, Instruction& instruction);

/// A number in decimal or hexadecimal digits.
/// \throws std::runtime_error for anything else
std::int64_t parse_number(std::string_view text);

}  // namespace heddle::amd::simulator
