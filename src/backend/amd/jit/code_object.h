// The kernels of a code object, from the note with AMDGPU's metadata.
#pragma once

#include <optional>
#include <span>

namespace heddle::amd {

/// Figures of the kernels: of each the largest.
struct CodeObjectFacts {
  int kernels = 0;
  int vector_registers = 0;    // and those for accumulation
  int spilled_vector = 0;      // registers
  int spilled_scalar = 0;      // registers: clang keeps them in lanes of vector registers, as long as there are some
  int scratch_bytes = 0;       // of a thread, in memory
  int shared_bytes = 0;        // LDS
  bool dynamic_stack = false;  // of a size that is known at run time alone
};

/// Empty if the file has no such note, or a damaged one. Reads nothing outside `code`, whatever it holds.
std::optional<CodeObjectFacts> facts_of(std::span<const char> code);

}  // namespace heddle::amd
