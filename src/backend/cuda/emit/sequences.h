// The kernels that run before an attention kernel where lengths are on the device: text that depends on nothing.
#pragma once

#include <string>

#include "backend/cuda/jit/jit.h"

namespace heddle::cuda::emit {

jit::Source sequences(const std::string& architecture);

}  // namespace heddle::cuda::emit
