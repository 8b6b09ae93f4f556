// A loadable code object: its kernels, what they ask of a launch, and its instructions.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "backend/amd/simulator/instruction.h"

namespace heddle::amd::simulator {

/// One argument of a kernel, as the metadata has it.
struct ArgumentInfo {
  std::uint32_t offset = 0;
  std::uint32_t size = 0;
  std::string kind;  ///< by_value, global_buffer, or hidden_...
};

/// A kernel's metadata (note NT_AMDGPU_METADATA) and its descriptor.
struct KernelInfo {
  std::string name;
  std::vector<ArgumentInfo> arguments;
  std::uint32_t argument_bytes = 0;
  std::uint32_t lds_bytes = 0;
  std::uint32_t scratch_bytes = 0;  ///< of a lane
  std::uint32_t largest_group = 0;
  int wave_lanes = 0;
  int vgprs = 0;
  int agprs = 0;
  int sgprs = 0;
  int vgpr_spills = 0;
  int sgpr_spills = 0;
  std::uint64_t entry = 0;  ///< address of the first instruction
  std::uint64_t code_bytes = 0;
  std::uint32_t rsrc1 = 0;  ///< the descriptor's words
  std::uint32_t rsrc2 = 0;
  std::uint16_t properties = 0;
  std::uint16_t preload = 0;  ///< kernarg preload: SGPRs (bits 0 to 6), first dword (bits 7 to 15)
};

/// A part of the file that is loaded: bytes at an address, the rest zero.
struct Segment {
  std::uint64_t address = 0;
  std::uint64_t size = 0;
  std::vector<std::uint8_t> bytes;
  bool writable = false;
};

class CodeObject {
 public:
  /// Reads a code object with LLVM's llvm-objdump and llvm-readelf.
  /// \throws std::runtime_error if the file is none, or is for a chip that the simulator does not have
  static CodeObject load(const std::string& path);
  /// Loads from bytes in memory.
  static CodeObject load(std::span<const std::uint8_t> bytes);

  const Chip& chip() const { return chip_; }
  const Program& program() const { return program_; }
  const std::vector<KernelInfo>& kernels() const { return kernels_; }
  const std::vector<Segment>& segments() const { return segments_; }
  /// \throws std::runtime_error if there is none of that name
  const KernelInfo& kernel(const std::string& name) const;

 private:
  Chip chip_;
  Program program_;
  std::vector<KernelInfo> kernels_;
  std::vector<Segment> segments_;
};

}  // namespace heddle::amd::simulator
