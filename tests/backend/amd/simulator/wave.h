// The state of one wave, and of the workgroup that it belongs to.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "backend/amd/simulator/findings.h"
#include "backend/amd/simulator/instruction.h"
#include "backend/amd/simulator/lds.h"
#include "backend/amd/simulator/memory.h"
#include "backend/amd/simulator/waits.h"

namespace heddle::amd::simulator {

/// A vector register: 32 bits for each lane.
struct alignas(64) Row {
  std::array<std::uint32_t, kLanes> lane;
  std::uint32_t& operator[](int i) { return lane[static_cast<std::size_t>(i)]; }
  std::uint32_t operator[](int i) const { return lane[static_cast<std::size_t>(i)]; }
};

/// The lanes of a vector register of which the low or the high 16 bits hold nothing that was written.
struct Undefined {
  std::uint64_t low = 0;
  std::uint64_t high = 0;
  std::uint64_t any() const { return low | high; }
  void operator|=(const Undefined& other) { low |= other.low, high |= other.high; }
};

/// An LDS access that was issued and may come to pass later.
struct LdsAccess {
  std::uint32_t number = 0;  ///< of the operation (Waits)
  std::uint32_t size = 0;
  std::uint64_t exec = 0;
  bool written = false;
  std::array<std::uint32_t, kLanes> address;
};

struct Wave {
  enum class State : std::uint8_t { kReady, kAtBarrier, kEnded };

  std::array<Row, kVectorRegisters> v;
  std::array<Undefined, kVectorRegisters> undefined;
  std::array<std::uint32_t, kScalarRegisters> s;
  std::array<std::uint32_t, kScalarRegisters> s_undefined;  ///< bits that nothing wrote
  bool scc = false;
  bool scc_undefined = false;

  int pc = 0;                      ///< index of the next instruction
  int number = 0;                  ///< in the workgroup
  std::uint32_t first_thread = 0;  ///< Memory's number of lane 0
  State state = State::kReady;
  bool signalled = false;  ///< between s_barrier_signal and s_barrier_wait
  std::uint64_t executed = 0;
  Waits waits;
  std::vector<LdsAccess> lds_out;
  std::vector<std::uint8_t> scratch;            ///< of lane l: bytes [l * scratch_bytes, (l + 1) * scratch_bytes)
  std::vector<std::uint8_t> scratch_undefined;  ///< the same, a byte for each byte
  std::uint32_t scratch_bytes = 0;

  std::uint64_t pair(int index) const {
    return s[static_cast<std::size_t>(index)] | static_cast<std::uint64_t>(s[static_cast<std::size_t>(index) + 1])
                                                    << 32;
  }
  void set_pair(int index, std::uint64_t value) {
    s[static_cast<std::size_t>(index)] = static_cast<std::uint32_t>(value);
    s[static_cast<std::size_t>(index) + 1] = static_cast<std::uint32_t>(value >> 32);
  }
};

struct Group {
  std::array<std::uint32_t, 3> id{};
  std::uint32_t epoch = 1;  ///< barriers passed, and one
  Lds lds;
  std::vector<std::unique_ptr<Wave>> waves;
};

/// Counters of a running launch.
struct Counts {
  std::vector<std::uint64_t> executed;  ///< of each instruction of the program
  BankCycles lds;
  std::vector<std::uint64_t> conflicts;  ///< cycles of each instruction of the program
  std::uint32_t first_thread = 0;        ///< the launch's first number of a thread (Memory)
  std::uint64_t global_bytes_loaded = 0;
  std::uint64_t global_bytes_stored = 0;
};

/// All that an instruction may see and change.
struct Execution {
  Wave& wave;
  Group& group;
  Memory& memory;
  Findings& findings;
  Counts& counts;
  const Program& program;
  const Chip& chip;
  const Instruction* current = nullptr;

  int lanes() const { return chip.lanes; }
  std::uint64_t all_lanes() const { return chip.lanes == 64 ? ~0ull : 0xffff'ffffull; }
  std::uint64_t exec() const { return wave.pair(kExec) & all_lanes(); }
  /// Adds a finding at the current instruction.
  void found(Fault fault, const std::string& detail);
  Toucher toucher() const {
    const std::uint32_t after = wave.signalled ? 1 : 0;
    return {static_cast<std::uint32_t>(wave.number), group.epoch, group.epoch + after};
  }
};

/// A scalar operand's value, and the bits of it that nothing wrote.
struct ScalarValue {
  std::uint64_t bits = 0;
  std::uint64_t undefined = 0;
};
ScalarValue read_scalar(const Wave& wave, const Operand& operand);
/// Writes one or two registers. exec must not become undefined: that is a finding.
void write_scalar(Execution& x, const Operand& operand, ScalarValue value);

/// Where generic addresses point to LDS and to scratch: the upper halves of their addresses.
inline constexpr std::uint32_t kLdsAperture = 0x00010000;
inline constexpr std::uint32_t kScratchAperture = 0x00020000;

}  // namespace heddle::amd::simulator
