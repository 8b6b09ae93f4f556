// The portable forward family on NVIDIA's and AMD's GPUs: its plans, for problems that portable_refuses() lets pass.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "backend/gpu/gpu.h"
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

namespace heddle::forward_mma {

/// The kernel of a plan: compiled, its lists on the device, ready to launch. Throws as Gpu::load().
std::unique_ptr<backend::Kernel> prepare(const backend::PrepareArguments& arguments, const gpu::Gpu& gpu);

}  // namespace heddle::forward_mma
