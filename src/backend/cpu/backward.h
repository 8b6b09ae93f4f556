// The CPU backend's backward, as its backend prepares it.
#pragma once

#include <memory>

#include "backend/backend.h"

namespace heddle::cpu {

std::unique_ptr<backend::Kernel> prepare_backward(const backend::PrepareArguments& arguments);

}  // namespace heddle::cpu
