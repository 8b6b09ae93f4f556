// The kernel that copies rows which TMA does not take, before forward_sm90: text that depends on nothing.
#pragma once

#include "backend/cuda/jit/jit.h"

namespace heddle::cuda::emit {

jit::Source copied_rows();

}  // namespace heddle::cuda::emit
