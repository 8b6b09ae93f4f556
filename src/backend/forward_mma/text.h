// The text of one kernel of the portable forward family, for any compiler: CUDA's, HIP's, the host's.
#pragma once

#include <string>

#include "backend/device_text/expression_text.h"
#include "plan/mods/kernel_mods.h"
#include "shared/forward_mma_config.h"

namespace heddle::forward_mma {

/// "forward_mma bf16 d128 64x64 masked lse"
std::string name_of(const shared::ForwardMmaConfig& config);

/// In namespace heddle: kConfig, and the class GeneratedMods with the mods that the kernel computes. It includes the
/// headers of kernels/cuda/mods, src/shared and kernels/portable that it needs; the kernel itself is to follow.
std::string config_and_mods_text(const shared::ForwardMmaConfig& config, const plan::KernelMods& mods,
                                 const device_text::ModLayout& layout);

/// "MmaFragments", and the header that has it: "portable/fragments/mma.cuh".
std::string fragments_class(shared::FragmentKind kind);
std::string fragments_header(shared::FragmentKind kind);

}  // namespace heddle::forward_mma
