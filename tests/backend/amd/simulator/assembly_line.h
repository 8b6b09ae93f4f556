// One line of a disassembly, taken apart but not yet understood.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace heddle::amd::simulator {

/// `v_add_f32_e64 v1, |v2|, s3 clamp` is the mnemonic, three operands and one modifier.
struct AssemblyLine {
  std::uint64_t address = 0;  ///< in the code object
  std::string text;           ///< as printed, without the address and the encoding
  std::string mnemonic;
  std::vector<std::string> operands;
  std::vector<std::string> modifiers;
  std::string second_half;  ///< of a VOPD pair: what stands behind "::", else empty
};

/// A function of the disassembly: its instructions in the order of their addresses.
struct Disassembly {
  std::vector<AssemblyLine> lines;
};

/// Reads what `llvm-objdump -d` printed.
/// \throws std::runtime_error for a line that is neither a label nor an instruction with its address
Disassembly parse_disassembly(std::string_view text);

/// Mnemonic, operands and modifiers of one instruction (of one half of a VOPD pair).
AssemblyLine parse_instruction(std::string_view text);

}  // namespace heddle::amd::simulator
