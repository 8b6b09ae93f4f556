// Which kernels of the compile table a run compiles: by default a sample, under HEDDLE_TEST_FULL all.
#pragma once

#include "backend/cuda/jit/jit.h"

namespace heddle::cuda {

/// Whether this run compiles the kernel. The sample is, in the order in which the tests ask:
///   - each kernel that is the first with its shape (head dims, rows, keys, 8 or 16 bits), or the first with some value
///   of
///     a field of its configuration (a form of scores, a type of o, packed heads, ...);
///   - where HEDDLE_TEST_CHANGED names files (./test.sh: what differs from the branch's base) that kernels are made of:
///   a
///     share of the kernels that those files concern, drawn by HEDDLE_TEST_SEED.
bool in_sample(const jit::Source& source);

}  // namespace heddle::cuda
