// Machine code of a source, and the resources of the machine that it takes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace heddle::jit {

struct MachineCode {
  std::vector<char> bytes;
  std::string log;  // of the compiler
  int registers = 0, spill_bytes = 0, stack_bytes = 0, static_shared_bytes = 0;
  double compile_ms = 0;   // of the compilation that made it, whenever that was; 0 from an archive
  std::string compiler{};  // that made it: "NVRTC 13.0"
  enum class From : std::uint8_t { compiler, memory, disk, archive } from = From::compiler;
};

/// "compiled", "from memory", "from the disk cache", "from an archive"
const char* name(MachineCode::From from);

}  // namespace heddle::jit
