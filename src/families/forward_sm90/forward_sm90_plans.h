// The Hopper forward family, for problems that sm90_refuses() lets pass: its candidates, and their cost.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "families/forward_sm90/forward_sm90_candidates.h"
#include "plan/plan.h"

namespace heddle::plan {

/// Candidates for tensors of these strides, best first. Order: 1. kernels that drop by bits, read a stored mask or take
/// numbers of the keys, before those that compute these for each element; 2. kernels that are not expected to spill; 3.
/// predicted time. `rejected` of each lists the kernels that do not fit the caller's blocks, and by how much the later
/// ones are predicted slower. Throws Error(unsupported) with the reasons if the caller's block mask fits no kernel.
std::vector<Choice> forward_sm90(const problem::AttentionProblem& problem, const AttentionTensors& tensors,
                                 const AttentionOptions& options, const device::CudaCaps& caps, const RowsOf& rows_of);

/// The tiles of such a kernel, at its own costs: schedule_tiles().
TileSchedule forward_sm90_schedule(const problem::AttentionProblem& problem, const shared::ForwardSm90Config& config,
                                   const BlockMask* block_mask, const device::CudaCaps& caps,
                                   const TileOrder& order = {});

}  // namespace heddle::plan

namespace heddle::forward_sm90 {

/// The kernel of a plan: compiled, its lists on the device, ready to launch. Throws jit::Rejected when the compiler
/// makes it badly, Error(compile), Error(unsupported) without NVRTC, Error(out_of_memory).
std::unique_ptr<backend::Kernel> prepare(const backend::PrepareArguments& arguments);

}  // namespace heddle::forward_sm90
