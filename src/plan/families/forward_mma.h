// The portable forward family on NVIDIA's and AMD's GPUs: which problems it takes, and its candidates.
#pragma once

#include <string>
#include <vector>

#include "plan/families/forward_mma_config.h"
#include "plan/plan.h"

namespace heddle::plan {

/// Empty when the family takes the problem; else the reason, a sentence that names what is not taken and what is. Any
/// strides are taken.
std::string forward_mma_refuses(const problem::AttentionProblem& problem, const AttentionOptions& options,
                                const device::CudaCaps& caps);
std::string forward_mma_refuses(const problem::AttentionProblem& problem, const AttentionOptions& options,
                                const device::AmdCaps& caps);

/// What no kernel over the portable fragments takes, forward or backward: problems; devices.
std::string portable_refuses(const problem::AttentionProblem& problem, const AttentionOptions& options);
std::string portable_device_refuses(const device::CudaCaps& caps);
std::string portable_device_refuses(const device::AmdCaps& caps);
/// Says that the portable kernels have not run on a chip like this one, and how far they are tested for it. Empty: they
/// have.
std::string portable_untried(const device::CudaCaps& caps);
std::string portable_untried(const device::AmdCaps& caps);

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
