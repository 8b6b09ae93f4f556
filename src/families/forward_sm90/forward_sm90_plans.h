// The Hopper forward family, for problems that sm90_refuses() lets pass: its candidates, and their cost.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "families/forward_sm90/shared/forward_sm90_config.h"
#include "plan/plan.h"

namespace heddle::plan {

/// The candidates for a problem with tensors of these strides, with the predicted time of each, best first (those that
/// may spill last, and after them those that weigh or mask each element where others only drop or store the mask); what
/// does not fit the caller's blocks stands in `rejected` of each, and what is predicted slower in those before it, by
/// how much. Throws Error(unsupported) with the reasons when the caller's block mask fits no kernel.
std::vector<Choice> forward_sm90(const problem::AttentionProblem& problem, const AttentionTensors& tensors,
                                 const AttentionOptions& options, const device::CudaCaps& caps, const RowsOf& rows_of);

/// Registers that a consumer thread is expected to need: its share of the scores, of their 16-bit copy and of o, what
/// every kernel needs beside them, and the mods. More than the config gives may spill (bench_forward_sm90_registers
/// holds it against the compiler).
int forward_sm90_registers(const shared::ForwardSm90Config& config, const KernelMods& mods);

/// The tiles of such a kernel, at its own costs: schedule_tiles().
TileSchedule forward_sm90_schedule(const problem::AttentionProblem& problem, const shared::ForwardSm90Config& config,
                                   const BlockMask* block_mask, const device::CudaCaps& caps,
                                   const TileOrder& order = {});

/// Seconds of one launch by the cost model (forward_sm90_costs.h has its numbers).
double forward_sm90_seconds(const TileSchedule& schedule);

}  // namespace heddle::plan
