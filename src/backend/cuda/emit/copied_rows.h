// The kernel that copies rows before forward_sm90 reads them: text that depends on nothing.
#pragma once

#include "backend/cuda/jit/jit.h"

namespace heddle::cuda::emit {

jit::Source copied_rows();

}  // namespace heddle::cuda::emit
