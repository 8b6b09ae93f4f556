// Rows moved between tensors on the CPU.
#pragma once

#include "backend/device.h"

namespace heddle::cpu {

void move_rows(const backend::MoveArguments& arguments);

}  // namespace heddle::cpu
