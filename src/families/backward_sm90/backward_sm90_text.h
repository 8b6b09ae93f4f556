// Sources of the Hopper backward's kernels.
#pragma once

#include "backend/cuda/jit/jit.h"
#include "backend/device_text/expression_text.h"
#include "families/backward_sm90/shared/backward_sm90_config.h"
#include "plan/mods/backward_mods.h"

namespace heddle::cuda::emit {

/// `layout` has the params and captures of all mods.
jit::Source backward_sm90(const shared::BackwardSm90Config& config, const plan::BackwardMods& mods,
                          const device_text::ModLayout& layout);

/// The kernels before and behind it: backward_rows(), backward_d_q() and backward_sinks().
jit::Source backward_rows(const shared::BackwardSm90Config& config);

}  // namespace heddle::cuda::emit
