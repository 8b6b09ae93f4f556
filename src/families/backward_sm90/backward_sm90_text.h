// Sources of the Hopper backward's kernels, and the pieces of text that they share with the kernels of
// backward_reads_text.h.
#pragma once

#include <string>
#include <string_view>

#include "backend/device_text/expression_text.h"
#include "backend/jit/source.h"
#include "families/backward_sm90/shared/backward_sm90_config.h"
#include "plan/mods/backward_mods.h"

namespace heddle::backward_sm90 {

/// `layout` has the params and captures of all mods.
jit::Source main_source(const shared::BackwardSm90Config& config, const plan::BackwardMods& mods,
                        const device_text::ModLayout& layout);

/// The kernels before and behind it: backward_rows(), backward_d_q() and backward_sinks().
jit::Source rows_source(const shared::BackwardSm90Config& config);

/// kConfig, in namespace heddle.
std::string config_text(const shared::BackwardSm90Config& config);
std::string name_of(const shared::BackwardSm90Config& config, std::string_view kernel);
/// kConfig, the products and the mods' functions: all but the kernel.
jit::Source source_before_kernel(const shared::BackwardSm90Config& config, const plan::BackwardMods& mods,
                                 const device_text::ModLayout& layout, std::string_view kernel);

}  // namespace heddle::backward_sm90
