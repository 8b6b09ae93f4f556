// Kernels of the portable backward family, compiled by the host's compiler and run there, with the lists and parameters
// that their launcher would pass.
#pragma once

#include <cstddef>
#include <string>

#include "backend/portable/shared/forward_mma_config.h"
#include "engine/backward_case.h"

namespace heddle::test {

/// How a backward is run.
struct HostBackwardRun {
  shared::FragmentKind fragments = shared::FragmentKind::host;
  std::size_t candidate = 0;    // which of the family's kernels; past their end: the last
  bool device_lengths = false;  // lengths and starts are as if in a GPU's memory
  unsigned seed = 1;            // of the order of threads and copies
};

/// Tensors and captures are in the host's memory. Gradients are written. Throws Error(unsupported) where the family
/// refuses the problem. Returns the kernels' name.
std::string run_backward_on_host(const BackwardTensors& tensors, const AttentionOptions& options,
                                 const HostBackwardRun& run = {});

/// The case forward on the CPU and backward here; expects what every run owes.
void run_backward_on_host_and_judge(const CaseSpec& spec, const BackwardSpec& backward, HostBackwardRun run = {});

}  // namespace heddle::test
