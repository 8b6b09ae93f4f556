// WMMA and MFMA.
#pragma once

#include "backend/amd/simulator/matrix_forms.h"
#include "backend/amd/simulator/wave.h"

namespace heddle::amd::simulator {

/// to[0]: D; from[0], from[1], from[2]: A, B, C (which may be a constant). `detail` is the form's index. exec plays no
/// part: the hardware does not look at it either.
void execute_matrix(Execution& x, const Instruction& instruction);

}  // namespace heddle::amd::simulator
