// The device headers, as text inside the library (kernels/cuda and the headers of src/shared that they include).
#pragma once

#include <vector>

#include "backend/cuda/jit/jit.h"

namespace heddle::cuda::emit {

/// Names as the kernels include them: "forward_sm90.cuh", "shared/forward_sm90.h".
const std::vector<jit::Header>& embedded_headers();

}  // namespace heddle::cuda::emit
