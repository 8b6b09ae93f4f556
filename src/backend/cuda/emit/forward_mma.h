// The portable forward family as text for NVRTC.
#pragma once

#include <string>

#include "backend/cuda/jit/jit.h"
#include "backend/device_text/expression_text.h"
#include "plan/mods/kernel_mods.h"
#include "shared/forward_mma_config.h"

namespace heddle::cuda::emit {

/// Kernel forward_mma, which takes shared::ForwardMmaParams, for that architecture: "sm_80". `layout`: of the mods'
/// params and captures.
jit::Source forward_mma(const shared::ForwardMmaConfig& config, const plan::KernelMods& mods,
                        const device_text::ModLayout& layout, const std::string& architecture);

}  // namespace heddle::cuda::emit
