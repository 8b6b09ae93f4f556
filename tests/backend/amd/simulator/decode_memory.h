// The operands of memory instructions: their order differs by kind, and is made one order here (memory_operations.h).
#pragma once

#include <string_view>

#include "backend/amd/simulator/assembly_line.h"
#include "backend/amd/simulator/instruction.h"

namespace heddle::amd::simulator {

/// \returns false if `name` is no memory instruction
/// \throws std::runtime_error if it is one that cannot be simulated
bool decode_memory(std::string_view name, const AssemblyLine& line, Instruction& instruction);

}  // namespace heddle::amd::simulator
