// The portable backward family as text for NVRTC.
#pragma once

#include <string>

#include "backend/cuda/jit/jit.h"
#include "backend/device_text/expression_text.h"
#include "plan/mods/backward_mods.h"
#include "plan/plan.h"

namespace heddle::cuda::emit {

/// The kernels that backward_mma::MakeSource names, for that architecture: "sm_80". `layout`: of the mods' params and
/// captures.
jit::Source backward_mma(const plan::BackwardMmaKernels& kernels, const plan::BackwardMods& mods,
                         const device_text::ModLayout& layout, const std::string& architecture);

}  // namespace heddle::cuda::emit
