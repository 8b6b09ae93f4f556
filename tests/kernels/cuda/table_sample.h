// Which kernels of the compile table a run compiles: by default a sample, under HEDDLE_TEST_FULL all.
#pragma once

#include "backend/cuda/jit/cuda_jit.h"

namespace heddle::cuda {

/// Whether this run compiles the kernel. HEDDLE_TEST_SEED draws the sample from the kernels, in the order of the tests:
///   - an eighth of a family's shapes (head dims, rows, keys, 8 or 16 bits) and of the values of its configuration's
///     fields (a form of scores, a type of o, packed heads, ...); each by the first kernel that has it;
///   - one kernel in 64; one in 16 if HEDDLE_TEST_CHANGED (./test.sh: what differs from the branch's base) names files
///     that all kernels are made of, one in 6 of those that run a changed file's code. At most 10 in 900 kernels.
/// If HEDDLE_TEST_KERNELS says that kernels are unchanged (sample.h), a third of both.
bool in_sample(const jit::Source& source);

}  // namespace heddle::cuda
