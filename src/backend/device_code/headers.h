// The device headers, as text inside the library: kernels/ and the headers of src/shared that they include.
#pragma once

#include <vector>

#include "backend/jit/source.h"

namespace heddle::device_code {

/// For NVIDIA's GPUs, under the names that kernels include: "families/mask_rows.cuh", "shared/forward_sm90.h",
/// "portable/forward/forward.cuh".
const std::vector<jit::Header>& cuda_headers();
/// For AMD's: the same names, those of kernels/amd in the place of the others'.
const std::vector<jit::Header>& amd_headers();

}  // namespace heddle::device_code
