// The portable forward family on NVIDIA's and AMD's GPUs: its plans, for problems that portable_refuses() lets pass.
#pragma once

#include <string>
#include <vector>

#include "families/forward_mma/forward_mma_candidates.h"
#include "plan/plan.h"

namespace heddle::plan {

/// The family's plans, best first, at least one. Throws Error(unsupported) when no kernel fits.
std::vector<Choice> forward_mma(const problem::AttentionProblem& problem, const AttentionTensors& tensors,
                                const AttentionOptions& options, const device::CudaCaps& caps, const RowsOf& rows_of);
std::vector<Choice> forward_mma(const problem::AttentionProblem& problem, const AttentionTensors& tensors,
                                const AttentionOptions& options, const device::AmdCaps& caps, const RowsOf& rows_of);

/// Where CTAs share a tile's steps, or could: with half and with twice as many of them.
std::vector<Choice> forward_mma_variants(const problem::AttentionProblem& problem, const AttentionTensors& tensors,
                                         const AttentionOptions& options, const device::CudaCaps& caps,
                                         const RowsOf& rows_of);
std::vector<Choice> forward_mma_variants(const problem::AttentionProblem& problem, const AttentionTensors& tensors,
                                         const AttentionOptions& options, const device::AmdCaps& caps,
                                         const RowsOf& rows_of);

TileSchedule forward_mma_schedule(const problem::AttentionProblem& problem, const shared::ForwardMmaConfig& config,
                                  const BlockMask* block_mask, const device::GpuCaps& caps, const TileOrder& order);

}  // namespace heddle::plan
