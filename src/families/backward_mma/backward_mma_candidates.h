// backward_mma's configurations: of a problem, from the family's table of kernels.
#pragma once

#include <string_view>
#include <utility>
#include <vector>

#include "backend/portable/portable_config.h"
#include "families/backward_mma/backward_mma_reads.h"
#include "families/backward_mma/shared/backward_mma_config.h"
#include "plan/config_fields.h"
#include "plan/mods/backward_mods.h"
#include "plan/plan.h"
#include "plan/setting.h"

namespace heddle::plan {

/// The kernels of backward_mma: its passes in the order of their launches, and what the kernels around them are.
struct BackwardMmaKernels {
  std::vector<shared::BackwardMmaConfig> passes;
  shared::BackwardMmaRows rows;
  std::int64_t sum_elements = 0;  // of gradients of captures and params
};

/// The kernels for a problem on a GPU, best first. What depends on strides is as `tensors` have them.
std::vector<BackwardMmaKernels> backward_mma_kernels(const problem::AttentionProblem& problem, const BackwardMods& mods,
                                                     const MmaReads& reads, const BackwardTensors& tensors,
                                                     MmaTarget target);

/// The name of a pass in kernels' names and in explain(): "dk and dv", "dk", "dv", "dq" (also of a pass that only sums
/// reads).
std::string_view name_of_pass(const shared::BackwardMmaConfig& pass);

/// explain()'s lines about the kernels.
std::vector<Setting> backward_mma_settings(const BackwardMmaKernels& kernels);

}  // namespace heddle::plan

#define HEDDLE_CONFIG BackwardMmaConfig
#define HEDDLE_CONFIG_FIELDS "families/backward_mma/shared/backward_mma_config.def"
#include "plan/config_fields.inc"
