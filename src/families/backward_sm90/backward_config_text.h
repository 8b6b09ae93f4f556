// Pieces of text that kernels of backward_sm90 share.
#pragma once

#include <string>
#include <string_view>

#include "backend/cuda/jit/jit.h"
#include "backend/device_text/expression_text.h"
#include "families/backward_sm90/shared/backward_sm90_config.h"
#include "plan/mods/backward_mods.h"

namespace heddle::cuda::emit {

/// kConfig, in namespace heddle.
std::string backward_config_text(const shared::BackwardSm90Config& config);
std::string backward_name(const shared::BackwardSm90Config& config, std::string_view kernel);
/// kConfig, the products and the mods' functions: all but the kernel.
jit::Source backward_source(const shared::BackwardSm90Config& config, const plan::BackwardMods& mods,
                            const device_text::ModLayout& layout, std::string_view kernel);

}  // namespace heddle::cuda::emit
