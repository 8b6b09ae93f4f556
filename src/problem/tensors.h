// q, k, v, o and lse: ranks, dtypes, devices, shapes and strides that fit each other, and memory that does not overlap.
#pragma once

#include "problem/problem.h"

namespace heddle::problem {

/// Shapes, dtypes and strides of the caller's o and lse against what the inputs ask for. Memory is not looked at.
void check_outputs(const AttentionTensors& tensors, const Outputs& expected);

}  // namespace heddle::problem
