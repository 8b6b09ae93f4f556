// A disassembly to a program.
#pragma once

#include "backend/amd/simulator/assembly_line.h"
#include "backend/amd/simulator/instruction.h"

namespace heddle::amd::simulator {

/// Instructions that the simulator does not know are kept, and fail when a wave comes to them: a code object may hold
/// kernels that are not run.
Program decode(const Disassembly& disassembly, const Chip& chip);

}  // namespace heddle::amd::simulator
