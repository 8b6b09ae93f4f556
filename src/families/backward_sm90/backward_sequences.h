// Runs before backward_sm90 if sequences' lengths are in the device's memory: finds where the sequences stand, writes
// the blocks of rows and the tiles that they leave, and fills the gradients' rows that no sequence has.
#pragma once

#include <memory>

#include "backend/backend.h"
#include "backend/cuda/driver/device.h"
#include "backend/cuda/jit/jit.h"
#include "families/backward_sm90/backward_sm90_launch.h"
#include "shared/backward_lists.h"
#include "shared/sequences.h"

namespace heddle::cuda {

/// Parameters of the list kernels in a run.
struct BackwardSequencesParams {
  shared::SequencesParams sequences{};  // of place_sequences
  shared::BackwardListsParams lists{};
};
/// `constants`: with the host's lists, in device memory. `tiles`, `blocks`: their numbers.
BackwardSequencesParams backward_sequences_params(const problem::AttentionProblem& problem,
                                                  const shared::BackwardSm90Config& config,
                                                  const BackwardConstants& constants, std::int64_t tiles,
                                                  std::int64_t blocks);
/// Sets a run's lists, which its kernels then read in its workspace.
void set_backward_lists(const backend::RunArguments& arguments, const problem::AttentionProblem& problem,
                        const shared::BackwardSm90Config& config, BackwardSequencesParams& params,
                        BackwardConstants& constants);

class BackwardSequences {
 public:
  /// Compiles the kernels. Throws as jit::build.
  BackwardSequences(int device, const BackwardSequencesParams& params);
  /// As set_backward_lists() has changed them: enqueues the kernels on a CUstream.
  void launch(BackwardSequencesParams& params, void* stream) const;
  const BackwardSequencesParams& params() const { return params_; }

 private:
  std::shared_ptr<const jit::Cubin> cubin_;
  Module module_;
  CUfunction place_, blocks_, tiles_, gaps_;
  BackwardSequencesParams params_;
};

}  // namespace heddle::cuda
