// A kernel, as its code object describes it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

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

}  // namespace heddle::amd::simulator
