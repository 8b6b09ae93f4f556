// The source of one forward_sm90 kernel: its configuration, the wgmma instructions of its tile, its mods, and the
// template's text.
#pragma once

#include "backend/device_text/expression_text.h"
#include "backend/jit/source.h"
#include "families/forward_sm90/shared/forward_sm90_config.h"
#include "plan/mods/kernel_mods.h"

namespace heddle::forward_sm90 {

/// `config` says which of the mods there are, and in which form the scores (plan::config_with). `layout` is that of all
/// of them. The kernel's function is called "forward_sm90".
jit::Source source(const shared::ForwardSm90Config& config, const plan::KernelMods& mods,
                   const device_text::ModLayout& layout);

}  // namespace heddle::forward_sm90
