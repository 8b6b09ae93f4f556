// Runs before forward_sm90 if sequences' lengths are in the device's memory: finds where the sequences stand, and which
// tiles they leave.
#pragma once

#include <memory>
#include <vector>

#include "backend/backend.h"
#include "backend/cuda/driver/device.h"
#include "backend/cuda/jit/jit.h"
#include "shared/sequences.h"

namespace heddle::cuda {

class DeviceSequences {
 public:
  /// Compiles the kernels. `params`: of forward_sm90, the longest sequences' lengths and lists. Throws as jit::build.
  DeviceSequences(const problem::AttentionProblem& problem, const shared::ForwardSm90Config& config, int device,
                  const shared::ForwardSm90Params& params, const std::vector<unsigned>& steps_before);

  /// Enqueues them on a CUstream, over the lengths of `options`, and has `params` read what they write into the
  /// workspace.
  void launch(const AttentionOptions& options, void* workspace, void* stream, shared::ForwardSm90Params& params) const;

 private:
  std::shared_ptr<const jit::Cubin> cubin_;
  Module module_;
  CUfunction place_, list_;
  DeviceMemory steps_before_;
  shared::SequencesMemory memory_;
  shared::SequencesParams params_{};
};

/// Of each run, and of their end: key blocks in all runs before it, modulo 2^32.
std::vector<unsigned> steps_before(const std::vector<shared::KvRun>& runs);

}  // namespace heddle::cuda
