// The parameters of the portable backward's kernels, which are the same on every device: those that a plan
// fixes, and those that each run brings.
#pragma once

#include <vector>

#include "backend/backend.h"
#include "backend/gpu/backward_sequences.h"
#include "families/backward_mma/backward_mma.h"
#include "families/backward_mma/backward_mma_reads.h"
#include "families/backward_mma/shared/backward_mma_params.h"

namespace heddle::backward_mma {

struct Params {
  std::vector<shared::BackwardMmaParams> passes;
  shared::BackwardRowsParams rows{};
  shared::MmaSumsParams sums{};
  shared::MmaWidenParams widen{};
};

/// The types in which the gradients of captures and params are stored.
std::vector<shared::StorageType> types_of_sums(const plan::MmaReads& reads, const BackwardTensors& tensors);

/// All but addresses, lists and values of mods.
Params constant_params(const backend::PrepareArguments& arguments, const plan::MmaReads& reads);

/// The addresses of a run. Throws Error(invalid_argument), naming the tensor, where one is aligned less than planned.
void set_addresses(const plan::BackwardMmaKernels& kernels, const problem::AttentionProblem& problem,
                   const plan::MmaReads& reads, const backend::RunArguments& arguments, Params& params);

/// For lengths on the device: lets the kernels of a run read the lists in its workspace.
void set_lists_to_read(const backend::RunArguments& arguments, const problem::AttentionProblem& problem,
                       const plan::BackwardMmaKernels& kernels, gpu::BackwardSequencesParams& sequences,
                       Params& params);

}  // namespace heddle::backward_mma
