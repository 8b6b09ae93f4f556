// forward_mma's configurations: of a problem, from the family's table of kernels.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "backend/portable/portable_config.h"
#include "backend/portable/shared/forward_mma_config.h"
#include "plan/mods/kernel_mods.h"
#include "plan/setting.h"

namespace heddle::plan {

/// The kernels for a problem on a GPU, best first: those for few queries before the others. What depends on the
/// strides is as `tensors` have them. `shared_memory_bytes`: that a CTA may have. `splits` stays 1.
std::vector<shared::ForwardMmaConfig> forward_mma_configs(const problem::AttentionProblem& problem,
                                                          const KernelMods& mods, const AttentionTensors& tensors,
                                                          std::int64_t shared_memory_bytes, MmaTarget target = kNvidia);

/// Why the kernel does not fit: a sentence without a subject. Empty when it does. `callers`: the block mask that was
/// given.
std::string forward_mma_misfit(const shared::ForwardMmaConfig& config, const problem::AttentionProblem& problem,
                               std::int64_t shared_memory_bytes, const BlockMask* callers);

/// explain()'s lines about a kernel.
std::vector<Setting> forward_mma_settings(const shared::ForwardMmaConfig& config);

}  // namespace heddle::plan
