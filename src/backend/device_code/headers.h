// The device headers, as text inside the library: kernels/, and the headers that host and device share.
#pragma once

#include <vector>

#include "backend/jit/source.h"

namespace heddle::device_code {

/// For NVIDIA's GPUs, under the names that kernels include: "around/mask_rows_kernels.cuh", "shared/philox.h",
/// "portable/forward_mma/forward.cuh".
const std::vector<jit::Header>& cuda_headers();
/// For AMD's, which have other files under names that common kernels include: "mods/instructions.cuh".
const std::vector<jit::Header>& amd_headers();

}  // namespace heddle::device_code
