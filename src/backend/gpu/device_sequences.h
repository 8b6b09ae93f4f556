// Runs before an attention kernel if sequences' lengths are in the device's memory: finds where the sequences stand,
// and which tiles they leave.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "backend/backend.h"
#include "backend/gpu/gpu.h"
#include "shared/mod_values.h"
#include "shared/sequences.h"
#include "shared/tile_shape.h"

namespace heddle::gpu {

class DeviceSequences {
 public:
  /// Compiles the kernels for a device of `gpu`, which is the problem's. `tiles`: the list for the longest sequences,
  /// in tiles of that shape. Throws as Gpu::load().
  DeviceSequences(const Gpu& gpu, int device, const problem::AttentionProblem& problem, const shared::TileShape& shape,
                  const shared::TileList& tiles, const std::vector<unsigned>& steps_before);

  /// Enqueues them on a stream, over the lengths of `options`. They write into the workspace; the attention kernel's
  /// parameters `tiles`, `mod` and `listed` then point there.
  void launch(const AttentionOptions& options, void* workspace, void* stream, shared::TileList& tiles,
              shared::ModValues& mod, shared::ListedTiles& listed) const;

 private:
  std::unique_ptr<Program> program_;
  void *place_, *list_, *place_and_list_;
  Memory steps_before_;
  shared::SequencesMemory memory_;
  shared::SequencesParams params_{};
};

/// One integer a sequence, i32 or i64, as kernels read it. Null for none.
shared::LengthsView lengths_view(const std::optional<ConstTensorView>& view);
/// Parameters of place_sequences that are the same in all runs of a plan: sequences and the rows that they may have.
shared::SequencesParams sequences_params(const problem::AttentionProblem& problem);
/// The lengths of a run.
void set_lengths(const AttentionOptions& options, shared::SequencesParams& params);

/// Key blocks in all runs before each run, and before their end, modulo 2^32.
std::vector<unsigned> steps_before(const std::vector<shared::KvRun>& runs);

}  // namespace heddle::gpu
