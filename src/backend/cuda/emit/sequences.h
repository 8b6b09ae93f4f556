// The kernels that run before forward_sm90 where lengths are on the device: text that depends on nothing.
#pragma once

#include "backend/cuda/jit/jit.h"

namespace heddle::cuda::emit {

jit::Source sequences();

}  // namespace heddle::cuda::emit
