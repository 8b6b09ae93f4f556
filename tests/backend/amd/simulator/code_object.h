// A loadable code object: its kernels, what they ask of a launch, and its instructions.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "backend/amd/simulator/instruction.h"
#include "backend/amd/simulator/kernel_info.h"

namespace heddle::amd::simulator {

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
