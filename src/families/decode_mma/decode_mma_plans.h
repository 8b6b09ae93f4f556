// The portable family for few queries on NVIDIA's GPUs: its plans, for problems that decode_mma_refuses() lets pass.
#pragma once

#include <memory>
#include <vector>

#include "backend/backend.h"
#include "backend/gpu/gpu.h"
#include "families/decode_mma/decode_mma_candidates.h"
#include "plan/plan.h"

namespace heddle::plan {

/// The family's plans, best first, at least one. Throws Error(unsupported) when no kernel fits, and where the mask
/// leaves few of the keys within the bounds that it has: the kernels read all keys there. Planning weighs with the
/// values of `bindings`.
std::vector<Choice> decode_mma(const problem::AttentionProblem& problem, const AttentionTensors& tensors,
                               const Bindings& bindings, const device::CudaCaps& caps, const RowsOf& rows_of);

}  // namespace heddle::plan

namespace heddle::decode_mma {

/// The kernel of a plan: compiled, ready to launch. Throws as Gpu::load().
std::unique_ptr<backend::Kernel> prepare(const backend::PrepareArguments& arguments, const gpu::Gpu& gpu);

}  // namespace heddle::decode_mma
