// Launches the kernels of backward_sm90 that sum gradients of captures and params
// (families/backward_sm90/shared/backward_reads_params.h).
#pragma once

#include <memory>
#include <vector>

#include "backend/backend.h"
#include "backend/cuda/driver/driver.h"
#include "backend/device_text/expression_text.h"
#include "backend/gpu/gpu.h"
#include "families/backward_sm90/backward_reads.h"
#include "families/backward_sm90/backward_sm90_arguments.h"
#include "families/backward_sm90/shared/backward_reads_params.h"

namespace heddle::backward_sm90 {

/// The type of each sum, for the kernels' text.
std::vector<shared::StorageType> types_of_reads(const plan::BackwardReads& reads, const BackwardTensors& tensors);

/// Parameters that all runs of a plan share: all but addresses. `constants`: backward_constants().
shared::BackwardReadsParams backward_reads_params(const backend::PrepareArguments& arguments,
                                                  const plan::BackwardReads& reads, const BackwardConstants& constants);
/// Sets a run's own parameters. `memory`: the reads' part of the workspace. `constants`: the run's.
void set_reads(const backend::RunArguments& arguments, const plan::BackwardReads& reads,
               const plan::BackwardReadsMemory& at, char* memory, const BackwardConstants& constants,
               shared::BackwardReadsParams& params);

/// Rounds of the pass: of each the sequence and the head of keys, below 0: all.
struct ReadRound {
  int batch, head;
};
std::vector<ReadRound> rounds_of(const problem::AttentionProblem& problem, const plan::BackwardReads& reads);

/// The grid of collect_reads and scatter_reads: CTAs, and how many shares each is cut into.
struct ReadGrid {
  unsigned ctas, shares;
};
ReadGrid read_grid(const problem::AttentionProblem& problem);

class BackwardReadKernels {
 public:
  /// Compiles them. Throws as Gpu::load().
  BackwardReadKernels(const backend::PrepareArguments& arguments, const plan::BackwardMods& mods,
                      const plan::BackwardReads& reads, const device_text::ModLayout& layout);

  /// Enqueues what goes before the pass on a stream.
  void clear(shared::BackwardReadsParams& params, void* stream) const;
  /// The pass, over the main kernel's tiles.
  void visit(cuda::CUtensorMap (&maps)[4], shared::BackwardSm90Params& main, shared::BackwardReadsParams& params,
             unsigned tiles, void* stream) const;
  /// Behind it and backward_rows.
  void finish(shared::BackwardSm90Params& main, shared::BackwardReadsParams& params, void* stream) const;

  /// Null where no read visits pairs.
  const jit::MachineCode* pass() const { return pass_ ? &pass_->code() : nullptr; }
  double compile_ms() const { return sums_->code().compile_ms + (pass_ ? pass_->code().compile_ms : 0); }

 private:
  shared::BackwardSm90Config config_;
  std::vector<ReadRound> rounds_;
  ReadGrid grid_;
  bool any_partials_;
  std::unique_ptr<gpu::Program> sums_, pass_;
  void *clear_, *collect_, *scatter_, *store_, *visit_ = nullptr;
};

}  // namespace heddle::backward_sm90
