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

/// Kernel decode_mma, which takes shared::DecodeMmaParams, for that architecture: "sm_80". `layout`: of the mods'
/// params and captures.
jit::Source source(const shared::ForwardMmaConfig& config, const plan::KernelMods& mods,
                   const device_text::ModLayout& layout, const gpu::Dialect& dialect, const std::string& architecture);

}  // namespace heddle::decode_mma
