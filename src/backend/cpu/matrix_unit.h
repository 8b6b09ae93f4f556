// Which unit of this machine multiplies matrices of bf16.
#pragma once

#include "device/caps.h"

namespace heddle::cpu {

/// Asks the processor for AMX and the system for leave to use its registers, which then all threads have. Without
/// either: MatrixUnit::none. HEDDLE_CPU_AMX chooses too (docs/environment.md); throws invalid_argument for other words.
device::MatrixUnit find_matrix_unit();

}  // namespace heddle::cpu
