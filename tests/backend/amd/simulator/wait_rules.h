// Which counters an instruction increases, and what a wait instruction waits for.
#pragma once

#include "backend/amd/simulator/assembly_line.h"
#include "backend/amd/simulator/waits.h"
#include "backend/amd/simulator/wave.h"

namespace heddle::amd::simulator {

enum class WaitGroup : std::uint8_t { kNone, kVectorLoad, kVectorStore, kFlatLoad, kFlatStore, kLds, kScalarLoad };

WaitGroup wait_group_of(const Instruction& instruction, const Chip& chip);

/// The limits of a wait instruction, a byte for each Counter, 255 where it does not wait.
std::int64_t wait_limits(const AssemblyLine& line);

/// A register that the instruction uses may still be filled by an earlier load: a finding.
void check_waits(Execution& x, const Instruction& instruction);

/// The instruction has been issued: its counters go up, the registers that it fills are marked.
void issue(Execution& x, const Instruction& instruction);

}  // namespace heddle::amd::simulator
