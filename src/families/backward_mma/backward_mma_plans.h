// The portable backward family on NVIDIA's and AMD's GPUs: which problems it takes, its plans, and what its workspace
// holds.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "backend/gpu/gpu.h"
#include "families/backward_mma/backward_mma_candidates.h"
#include "plan/plan.h"
#include "plan/tiles/backward_schedule.h"
#include "shared/backward_lists.h"

namespace heddle::plan {

/// Empty if the family takes the problem; else a sentence that names the given value and the accepted ones. Any strides
/// are taken.
std::string backward_mma_refuses(const Request& request, const device::CudaCaps& caps);
std::string backward_mma_refuses(const Request& request, const device::AmdCaps& caps);

/// The family's plans, best first, at least one. Throws Error(unsupported) when no kernel fits.
std::vector<Choice> backward_mma(const Request& request, const device::CudaCaps& caps, const RowsOf& rows_of);
std::vector<Choice> backward_mma(const Request& request, const device::AmdCaps& caps, const RowsOf& rows_of);

/// Why the kernels do not fit; empty when they do.
std::string backward_mma_misfit(const BackwardMmaKernels& kernels, std::int64_t shared_memory_bytes);

/// The schedule of a pass. `block_mask` null: everything attends. Else its blocks are multiples of 64 x 64.
BackwardSchedule backward_mma_schedule(const problem::AttentionProblem& problem, const shared::BackwardMmaConfig& pass,
                                       const BlockMask* block_mask);

/// Sequences differ: kernels read where each stands.
bool has_spans(const BackwardMmaKernels& kernels);

/// Offsets in bytes in a run's workspace.
struct BackwardMmaWorkspace {
  std::int64_t numbers;  // softmax: portable_numbers() of each block and head
  std::int64_t sinks;    // a real of each block and head
  std::int64_t lists;    // lengths on the device: what backward_lists_memory() says, without tiles
  std::int64_t sums;     // reals of the gradients of captures and params
  std::int64_t bytes;
};
BackwardMmaWorkspace backward_mma_workspace(const problem::AttentionProblem& problem,
                                            const BackwardMmaKernels& kernels);
shared::BackwardListsMemory backward_mma_lists(const problem::AttentionProblem& problem);

}  // namespace heddle::plan

namespace heddle::backward_mma {

/// The kernels of a plan: compiled, their lists on the device, ready to launch. Throws as Gpu::load().
std::unique_ptr<backend::Kernel> prepare(const backend::PrepareArguments& arguments, const gpu::Gpu& gpu);

}  // namespace heddle::backward_mma
