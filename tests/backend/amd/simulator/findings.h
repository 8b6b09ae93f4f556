// Faults of a launch.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace heddle::amd::simulator {

enum class Fault : std::uint8_t {
  kWait,       ///< a register is used before the load that fills it was waited for
  kRace,       ///< two waves touch the same bytes of LDS between barriers, and one of them writes
  kBounds,     ///< an access outside of every buffer, of LDS or of scratch
  kUndefined,  ///< an address, a branch or a stored value depends on bits that nothing wrote
  kDuplicate,  ///< two threads store to the same address; halves of a WMMA operand that must be equal differ
  kAlignment,  ///< the address of an atomic is not a multiple of its bytes
  kBarrier,    ///< some waves wait for a barrier that others never reach
  kRunaway,    ///< a wave executes more instructions than the launch allows
};

const char* name_of(Fault fault);

struct Finding {
  Fault fault;
  std::uint64_t address = 0;  ///< of the instruction in the code object
  std::string instruction;    ///< its text
  std::string detail;         ///< workgroup, wave, lane, register or bytes
  std::uint64_t times = 1;    ///< how often this instruction had this fault
};

/// The faults of a launch: each instruction's first of each kind, with a count.
class Findings {
 public:
  /// \returns the new finding, whose detail is the caller's to fill; nullptr if it was counted with an earlier one
  Finding* add(Fault fault, std::uint64_t address, const std::string& instruction);
  const std::vector<Finding>& all() const { return findings_; }
  bool has(Fault fault) const;
  /// One line for each finding; empty without any.
  std::string text() const;

 private:
  std::vector<Finding> findings_;
};

}  // namespace heddle::amd::simulator
