// Runs before a backward if sequences' lengths are in the device's memory: finds where the sequences stand, writes the
// blocks of rows and the tiles that they leave, and fills the gradients' rows that no sequence has.
#pragma once

#include <memory>

#include "backend/backend.h"
#include "backend/gpu/gpu.h"
#include "shared/backward_lists.h"
#include "shared/sequences.h"

namespace heddle::gpu {

/// Parameters of the list kernels in a run.
struct BackwardSequencesParams {
  shared::SequencesParams sequences{};  // of place_sequences
  shared::BackwardListsParams lists{};
};
/// Parameters that all runs of a plan share. `blocks`: the most blocks of rows that there may be. A caller that has
/// tiles listed sets `lists.items` and the members after it; else tiles keep the host's list, made for the longest
/// sequences.
BackwardSequencesParams backward_sequences_params(const problem::AttentionProblem& problem, std::int64_t blocks);
/// Sets a run's own parameters: its lengths, its gradients, and where the lists stand in its memory.
void set_lists_to_write(const backend::RunArguments& arguments, const shared::BackwardListsMemory& at, char* memory,
                        BackwardSequencesParams& params);

class BackwardSequences {
 public:
  /// Compiles the kernels. Throws as Gpu::load().
  BackwardSequences(const Gpu& gpu, int device, const BackwardSequencesParams& params);
  const BackwardSequencesParams& params() const { return params_; }
  /// Enqueues the kernels, with params() as set_lists_to_write() has changed them.
  void launch(BackwardSequencesParams& params, void* stream) const;

 private:
  std::unique_ptr<Program> program_;
  void *place_, *blocks_, *tiles_, *gaps_;
  BackwardSequencesParams params_;
};

/// The text of the kernels place_sequences, list_backward_blocks, list_backward_tiles and fill_backward_gaps.
inline constexpr const char* kBackwardListsText =
    "#include \"around/sequences_kernels.cuh\"\n#include \"around/backward_lists_kernels.cuh\"\n";

}  // namespace heddle::gpu
