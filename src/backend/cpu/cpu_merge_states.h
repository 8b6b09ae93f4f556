// merge_states on the CPU.
#pragma once

#include "backend/device.h"

namespace heddle::cpu {

/// Computes in f64; large results on all cores.
void merge_states(const backend::MergeArguments& arguments);

}  // namespace heddle::cpu
