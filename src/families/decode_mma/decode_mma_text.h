// The text of one kernel of decode_mma.
#pragma once

#include <string>

#include "backend/device_text/expression_text.h"
#include "backend/gpu/dialect.h"
#include "backend/portable/shared/forward_mma_config.h"
#include "plan/mods/kernel_mods.h"

namespace heddle::decode_mma {

/// "decode_mma bf16 d128 16x128 packed 4"
std::string name_of(const shared::ForwardMmaConfig& config);

/// The kernel's configuration and mods: what Decode is made of, but for the architecture's fragments. `layout`: of the
/// mods' params and captures.
std::string config_and_mods(const shared::ForwardMmaConfig& config, const plan::KernelMods& mods,
                            const device_text::ModLayout& layout);

/// Kernel decode_mma, which takes shared::DecodeMmaParams, for that architecture: "sm_80".
jit::Source source(const shared::ForwardMmaConfig& config, const plan::KernelMods& mods,
                   const device_text::ModLayout& layout, const gpu::Dialect& dialect, const std::string& architecture);

}  // namespace heddle::decode_mma
