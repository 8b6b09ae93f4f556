// The kernel that copies rows before an attention kernel reads them: text that depends on nothing.
#pragma once

#include <string>

#include "backend/cuda/jit/jit.h"

namespace heddle::cuda::emit {

jit::Source copied_rows(const std::string& architecture);

}  // namespace heddle::cuda::emit
