// Runs before an attention kernel if sequences' lengths are in the device's memory: finds where the sequences stand,
// and which tiles they leave.
#pragma once

#include <memory>
#include <vector>

#include "backend/backend.h"
#include "backend/cuda/driver/device.h"
#include "backend/cuda/jit/jit.h"
#include "shared/mod_values.h"
#include "shared/sequences.h"
#include "shared/tile_shape.h"

namespace heddle::cuda {

class DeviceSequences {
 public:
  /// Compiles the kernels. `tiles`: the list for the longest sequences, in tiles of that shape. Throws as jit::build.
  DeviceSequences(const problem::AttentionProblem& problem, const shared::TileShape& shape, int device,
                  const shared::TileList& tiles, const std::vector<unsigned>& steps_before);

  /// Enqueues them on a CUstream, over the lengths of `options`. They write into the workspace; the attention kernel's
  /// parameters `tiles`, `mod` and `listed` then point there.
  void launch(const AttentionOptions& options, void* workspace, void* stream, shared::TileList& tiles,
              shared::ModValues& mod, shared::ListedTiles& listed) const;

 private:
  std::shared_ptr<const jit::Cubin> cubin_;
  Module module_;
  CUfunction place_, list_;
  DeviceMemory steps_before_;
  shared::SequencesMemory memory_;
  shared::SequencesParams params_{};
};

/// What is the same in all runs of a plan, for place_sequences: sequences and the rows that they may have.
shared::SequencesParams sequences_params(const problem::AttentionProblem& problem);
/// The lengths of a run.
void set_lengths(const AttentionOptions& options, shared::SequencesParams& params);

/// Of each run, and of their end: key blocks in all runs before it, modulo 2^32.
std::vector<unsigned> steps_before(const std::vector<shared::KvRun>& runs);

}  // namespace heddle::cuda
