// The text of one kernel of the portable forward family, for any compiler: CUDA's, HIP's, the host's.
#pragma once

#include <string>

#include "backend/device_text/expression_text.h"
#include "backend/gpu/dialect.h"
#include "backend/portable/shared/forward_mma_config.h"
#include "plan/mods/kernel_mods.h"

namespace heddle::forward_mma {

/// "forward_mma bf16 d128 64x64 masked lse"
std::string name_of(const shared::ForwardMmaConfig& config);

/// Kernel forward_mma, which takes shared::ForwardMmaParams, for that architecture: "sm_80", "gfx1100". `layout`: of
/// the mods' params and captures.
jit::Source source(const shared::ForwardMmaConfig& config, const plan::KernelMods& mods,
                   const device_text::ModLayout& layout, const gpu::Dialect& dialect, const std::string& architecture);

}  // namespace heddle::forward_mma
