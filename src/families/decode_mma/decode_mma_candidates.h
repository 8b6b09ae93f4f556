// decode_mma's configurations of a problem.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "backend/portable/portable_config.h"
#include "device/caps.h"
#include "plan/setting.h"

namespace heddle::plan {

/// A sentence where the family does not take the problem: it names the given value and the accepted ones. Empty: it
/// does.
std::string decode_mma_refuses(const problem::AttentionProblem& problem, const AttentionTensors& tensors,
                               const AttentionOptions& options, const device::CudaCaps& caps);

/// Kernels like this one have run on a GPU.
bool decode_mma_has_run(const shared::ForwardMmaConfig& config);
/// Says that kernels like this one have run on no GPU, or on none like this one. Empty: they have.
std::string decode_mma_untried(const shared::ForwardMmaConfig& config, const device::CudaCaps& caps);

/// The kernels for a problem that is not refused, best first: those whose CTAs fit a multiprocessor. What depends on
/// the strides is as `tensors` have them.
std::vector<shared::ForwardMmaConfig> decode_mma_configs(const problem::AttentionProblem& problem,
                                                         const KernelMods& mods, const AttentionTensors& tensors,
                                                         const device::CudaCaps& caps);

/// Tiles of each sequence.
int decode_mma_tiles(const problem::AttentionProblem& problem, const shared::ForwardMmaConfig& config);

/// Units of all sequences, as long as they may be.
std::int64_t decode_mma_units(const problem::AttentionProblem& problem, const shared::ForwardMmaConfig& config);

/// explain()'s lines about a kernel.
std::vector<Setting> decode_mma_settings(const shared::ForwardMmaConfig& config);

}  // namespace heddle::plan
