// Kernels as text for hipRTC.
#pragma once

#include <string>

#include "backend/device_text/expression_text.h"
#include "backend/jit/source.h"
#include "plan/mods/backward_mods.h"
#include "plan/mods/kernel_mods.h"
#include "plan/plan.h"
#include "shared/forward_mma_config.h"

namespace heddle::amd::emit {

/// A source that may include the library's device code, for that chip: "gfx1100".
jit::Source source(std::string name, const std::string& text, const std::string& architecture);

/// Kernel forward_mma, which takes shared::ForwardMmaParams. `layout`: of the mods' params and captures.
jit::Source forward_mma(const shared::ForwardMmaConfig& config, const plan::KernelMods& mods,
                        const device_text::ModLayout& layout, const std::string& architecture);

/// The kernels that backward_mma::MakeSource names.
jit::Source backward_mma(const plan::BackwardMmaKernels& kernels, const plan::BackwardMods& mods,
                         const device_text::ModLayout& layout, const std::string& architecture);

}  // namespace heddle::amd::emit
