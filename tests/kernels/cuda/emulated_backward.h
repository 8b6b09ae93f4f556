// Runs the kernels of backward_sm90, as the library writes them, in emulated CTAs (emulated/cta.h), with the lists and
// parameters that its launcher would pass.
#pragma once

#include <optional>
#include <string>

#include "heddle/backward.h"

namespace heddle::test {

/// How an emulated run may differ from the plan.
struct EmulatedRun {
  unsigned seed = 1;            // of the order of threads, copies and products
  bool mixed_partials = false;  // of rows and distances, as where they would take much memory
  bool together = false;        // CTAs run at one time, as those that wait for each other always do
  bool last_choice = false;     // the kernel that needs the fewest registers
  bool d_q_apart = false;       // a warpgroup of its own computes dQ, where there is such a kernel
  std::optional<bool> ring{};   // dQ's sums are a ring; unset: where plans have one
  bool small_ring = false;      // of two slots
  bool other_loads = false;  // above head dim 128: a pair's CTAs load together if plans let each load alone, or alone
  int shares = 0;            // tiles are cut into so many, where they have the steps; 0: as plans do
  bool device_lengths = false;  // lengths and starts are as if in a GPU's memory
};

/// Tensors and captures are in the host's memory. Gradients are written. Throws runtime_error where the host's compiler
/// refuses the text, Error where the family refuses the problem.
void run_emulated_backward(const BackwardTensors& tensors, const AttentionOptions& options,
                           const EmulatedRun& run = {});

}  // namespace heddle::test
