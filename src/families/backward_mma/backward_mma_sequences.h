// Runs before the portable backward if sequences' lengths are in the device's memory: finds where the sequences stand,
// writes the blocks of rows that they leave, and fills the gradients' rows that no sequence has. Tiles keep the host's
// list, which is that for the longest sequences.
#pragma once

#include <memory>

#include "backend/backend.h"
#include "backend/gpu/gpu.h"
#include "families/backward_mma/backward_mma_arguments.h"
#include "shared/backward_lists.h"
#include "shared/sequences.h"

namespace heddle::backward_mma {

/// Parameters of the list kernels in a run.
struct SequencesParams {
  shared::SequencesParams sequences{};  // of place_sequences
  shared::BackwardListsParams lists{};
};
SequencesParams sequences_params(const problem::AttentionProblem& problem, std::int64_t blocks);
/// Sets a run's lists, which its kernels then read in its workspace.
void set_lists(const backend::RunArguments& arguments, const problem::AttentionProblem& problem,
               const plan::BackwardMmaKernels& kernels, SequencesParams& own, Params& params);

class Sequences {
 public:
  /// Compiles the kernels. Throws as Gpu::load().
  Sequences(const gpu::Gpu& gpu, int device, const SequencesParams& params);
  const SequencesParams& params() const { return params_; }
  /// As set_lists() has changed them: enqueues the kernels.
  void launch(SequencesParams& params, void* stream) const;

 private:
  std::unique_ptr<gpu::Program> program_;
  void *place_, *blocks_, *gaps_;
  SequencesParams params_;
};

}  // namespace heddle::backward_mma
