// The parameters of the Hopper backward's kernels: those that a plan fixes, and those that each run brings.
#pragma once

#include <cstdint>

#include "backend/backend.h"
#include "backend/device_text/expression_text.h"
#include "backend/gpu/backward_sequences.h"
#include "families/backward_sm90/backward_reads.h"
#include "families/backward_sm90/d_q_ring.h"
#include "families/backward_sm90/shared/backward_sm90_params.h"
#include "plan/mods/backward_mods.h"
#include "plan/tiles/backward_schedule.h"

namespace heddle::backward_sm90 {

/// Parameters that all runs of a plan share: all but addresses of memory, values of mods, and lists.
struct BackwardConstants {
  shared::BackwardSm90Params main{};
  shared::BackwardRowsParams rows{};
};
/// The layout of the mods, and of what gradients of captures compute.
device_text::ModLayout backward_layout(const plan::BackwardMods& mods, const plan::BackwardReads& reads);

BackwardConstants backward_constants(const backend::PrepareArguments& arguments);

/// For lengths on the device. `constants`: with the host's lists, in device memory. `blocks`: how many of rows.
gpu::BackwardSequencesParams backward_sequences_params(const problem::AttentionProblem& problem,
                                                       const shared::BackwardSm90Config& config,
                                                       const BackwardConstants& constants, std::int64_t blocks);
/// Sets a run's lists, which its kernels then read in its workspace.
void set_lists_to_read(const backend::RunArguments& arguments, const problem::AttentionProblem& problem,
                       const shared::BackwardSm90Config& config, gpu::BackwardSequencesParams& params,
                       BackwardConstants& constants);

/// Sets what all runs of a plan know of dQ's ring.
void set_ring(const plan::DqRingShape& shape, const backend::PrepareArguments& arguments, BackwardConstants& constants);

/// Sets where CTAs that share tiles leave their sums. `places`: of the schedule; `memory`: behind the workspace's
/// bytes.
void set_shares(const shared::BackwardSm90Config& config, int places, void* memory, BackwardConstants& constants);

/// Sets a run's own parameters: addresses of its tensors and its workspace.
void set_addresses(const backend::RunArguments& arguments, const problem::AttentionProblem& problem,
                   const shared::BackwardSm90Config& config, BackwardConstants& constants);

}  // namespace heddle::backward_sm90
