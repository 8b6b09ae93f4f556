// Loads, stores and atomics of lanes: global, flat, scratch, buffer, and LDS.
#pragma once

#include "backend/amd/simulator/access.h"
#include "backend/amd/simulator/wave.h"

namespace heddle::amd::simulator {

/// Which kind of address a memory instruction has.
enum class Space : std::uint8_t { kGlobal, kFlat, kScratch, kBuffer };

// Operands after decoding, the same for all spaces. Loads: to[0]. from[0]: vector address, from[1]: data, from[2]:
// scalar base (a pair; of scratch a register; of buffers four), from[3]: a buffer's scalar offset. An absent one has no
// kind.
void execute_load(Execution& x, const Instruction& instruction);
void execute_store(Execution& x, const Instruction& instruction);
void execute_atomic(Execution& x, const Instruction& instruction);

// from[0]: address; from[1], from[2]: data. `detail` holds the access; `offset1` is used by two-address forms.
void execute_lds_load(Execution& x, const Instruction& instruction);
void execute_lds_load_two(Execution& x, const Instruction& instruction);
void execute_lds_store(Execution& x, const Instruction& instruction);
void execute_lds_store_two(Execution& x, const Instruction& instruction);
void execute_lds_atomic(Execution& x, const Instruction& instruction);

/// One lane's access to LDS, with all checks; of ds_ and of flat instructions.
LaneBytes load_lds_lane(Execution& x, int lane, std::uint64_t address, std::uint32_t bytes);
void store_lds_lane(Execution& x, int lane, std::uint64_t address, std::uint32_t bytes, const LaneBytes& value);

/// A barrier comes while LDS accesses are out: they count for the epoch after it, too.
void delay_lds_accesses(Execution& x);

}  // namespace heddle::amd::simulator
